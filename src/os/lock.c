/* SPDX-License-Identifier: Apache-2.0 */
#include "os/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void hki_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_us)
{
    const struct timespec limit = {.tv_sec = (time_t)(timeout_us / 1000000), .tv_nsec = (long)(timeout_us % 1000000) * 1000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_us == UINT64_MAX ? NULL : &limit);
}

void hki_futex_wake(_Atomic uint32_t *word, bool all) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, all ? INT_MAX : 1); }

/* The word is left as WANTED by whoever slept: it cannot know whether others still do. */
void hki_lock_wait(hki_lock *l)
{
    while (atomic_exchange_explicit(&l->word, HKI_LOCK_WANTED, memory_order_acquire) != HKI_LOCK_FREE)
        hki_futex_wait(&l->word, HKI_LOCK_WANTED, UINT64_MAX);
}

void hki_lock_wake(hki_lock *l) { hki_futex_wake(&l->word, false); }
