/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock of one word, zeroed when made: free, held, or held while others sleep for it (U. Drepper, "Futexes Are Tricky", 2011, section 6).
 * What it has over a pthread mutex is that taking and giving it compile to an instruction or two where nobody else is: it is taken for
 * every call of the library. Not recursive, not fair, not for sharing between processes. */
#ifndef HKI_OS_LOCK_H
#define HKI_OS_LOCK_H

#include "base/base.h"

#include <stdatomic.h>

typedef struct hki_lock { _Atomic uint32_t word; } hki_lock;
enum { HKI_LOCK_FREE, HKI_LOCK_HELD, HKI_LOCK_WANTED };

/* Sleeps while *word is value, timeout_us at most (UINT64_MAX: no limit); may return early. Within one process. */
void hki_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_us);
void hki_futex_wake(_Atomic uint32_t *word, bool all);

void hki_lock_wait(hki_lock *); /* the slow half of taking it */
void hki_lock_wake(hki_lock *);

static inline bool hki_lock_try(hki_lock *l)
{
    uint32_t was = HKI_LOCK_FREE;
    return atomic_compare_exchange_strong_explicit(&l->word, &was, HKI_LOCK_HELD, memory_order_acquire, memory_order_relaxed);
}

static inline void hki_lock_take(hki_lock *l)
{
    if (HKI_UNLIKELY(!hki_lock_try(l))) hki_lock_wait(l);
}

static inline void hki_lock_give(hki_lock *l)
{
    if (HKI_UNLIKELY(atomic_exchange_explicit(&l->word, HKI_LOCK_FREE, memory_order_release) == HKI_LOCK_WANTED)) hki_lock_wake(l);
}

/* Does somebody sleep for it? Who holds it for long lets go now and then. */
static inline bool hki_lock_wanted(hki_lock *l) { return atomic_load_explicit(&l->word, memory_order_relaxed) == HKI_LOCK_WANTED; }

#endif
