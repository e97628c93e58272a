/* SPDX-License-Identifier: Apache-2.0 */
#include "os/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The word is left as WANTED by whoever slept: it cannot know whether others still do. */
void hki_lock_wait(hki_lock *l)
{
    while (atomic_exchange_explicit(&l->word, HKI_LOCK_WANTED, memory_order_acquire) != HKI_LOCK_FREE)
        syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, HKI_LOCK_WANTED, NULL);
}

void hki_lock_wake(hki_lock *l) { syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1); }
