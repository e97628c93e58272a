/* SPDX-License-Identifier: Apache-2.0
 * Which instruction set's entry a fold or copy goes to, and the floating-point environment it runs in. */
#include "kern/kern.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

extern const hki_few_fn hki_few[HK_DTYPES][HKI_ROPS];
extern const hki_isa hki_isa_ref; /* fills every entry that another lacks */

static const hki_isa *_Atomic chosen; /* NULL until first use */

static const hki_isa *best(const char *force)
{
    const hki_isa *found = NULL;
    for (const hki_isa *const *p = hki_isas; *p; p++) {
        if (force && strcmp(force, (*p)->name)) continue;
        if ((!found || (*p)->rank > found->rank) && (*p)->usable()) found = *p;
    }
    return found;
}

const char *hki_kern_init(const char *force)
{
    const hki_isa *const isa = best(force);
    if (!isa) return NULL;
    atomic_store_explicit(&chosen, isa, memory_order_release);
    return isa->name;
}

/* Threads that come here first together find the same; a choice made by hki_kern_init meanwhile stays. */
static const hki_isa *first_use(void)
{
    const hki_isa *none = NULL, *const isa = best(NULL);
    HKI_ASSERT(isa);
    return atomic_compare_exchange_strong(&chosen, &none, isa) ? isa : none;
}

static inline const hki_isa *current(void)
{
    const hki_isa *const isa = atomic_load_explicit(&chosen, memory_order_acquire);
    return HKI_LIKELY(isa != NULL) ? isa : first_use();
}

const char *hki_kern_isa(void) { return current()->name; }

/* Round to nearest, subnormals kept, exceptions masked: the state a thread starts with. */
#if defined(__x86_64__)
enum { FP_DEFAULT = 0x1f80, FP_STICKY = 0x3f }; /* sticky flags are no setting */
static inline unsigned fp_get(void) { return _mm_getcsr(); }
static inline void fp_set(unsigned v) { _mm_setcsr(v); }
#elif defined(__aarch64__)
enum { FP_DEFAULT = 0, FP_STICKY = 0 };
static inline unsigned long fp_get(void) { unsigned long v; __asm__ volatile("mrs %0, fpcr" : "=r"(v)); return v; }
static inline void fp_set(unsigned long v) { __asm__ volatile("msr fpcr, %0" : : "r"(v) : "memory"); }
#else
enum { FP_DEFAULT = 0, FP_STICKY = 0 };
static inline unsigned fp_get(void) { return FP_DEFAULT; }
static inline void fp_set(unsigned v) { (void)v; }
#endif

bool hki_fold_supported(hk_dtype dtype, const hki_reduction *r)
{
    if ((unsigned)dtype >= HK_DTYPES || (unsigned)r->op >= HKI_ROPS) return false;
    const bool is_float = hki_dtype_is_float(dtype), bitwise = r->op == HKI_BAND || r->op == HKI_BOR || r->op == HKI_BXOR;
    if (is_float ? bitwise : r->finish == HKI_FINISH_SCALE) return false;
    if (r->op == HKI_USER && !r->user) return false;
    return r->finish != HKI_FINISH_AVG || r->divisor > 0;
}

hki_folder hki_fold_find(hk_dtype dtype, const hki_reduction *r)
{
    HKI_ASSERT(hki_fold_supported(dtype, r));
    const hki_fold_fn fn = current()->fold[dtype][r->op];
    const bool floats = hki_dtype_is_float(dtype), averages = !floats && r->finish == HKI_FINISH_AVG;
    return (hki_folder){fn ? fn : hki_isa_ref.fold[dtype][r->op], averages ? NULL : hki_few[dtype][r->op], floats};
}

void hki_fold_by(hki_folder f, void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t count, const hki_reduction *r,
                 bool apply_finish)
{
    const __auto_type fp = fp_get();
    const bool differs = f.floats && (fp & ~(__typeof__(fp))FP_STICKY) != FP_DEFAULT;
    if (HKI_UNLIKELY(differs)) fp_set(FP_DEFAULT);
    f.fn(dst, ndst, src, nsrc, count, r, apply_finish);
    if (HKI_UNLIKELY(differs)) fp_set(fp);
}

void hki_fold(hk_dtype dtype, void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t count,
              const hki_reduction *r, bool apply_finish)
{
    HKI_ASSERT(nsrc >= 1 && ndst >= 1 && ndst <= HKI_FOLD_MAX_DST);
    if (count) hki_fold_by(hki_fold_find(dtype, r), dst, ndst, src, nsrc, count, r, apply_finish);
}

void hki_copy(void *dst, const void *src, size_t bytes)
{
    const hki_copy_fn fn = current()->copy;
    (fn ? fn : hki_isa_ref.copy)(dst, src, bytes);
}

/* Streaming stores are not ordered with the plain ones that tell of them. */
static void drain(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

static hki_copy_fn streaming(void)
{
    const hki_isa *isa = current();
    return isa->stream ? isa->stream : isa->copy ? isa->copy : hki_isa_ref.copy;
}

void hki_copy_far(void *dst, const void *src, size_t bytes)
{
    streaming()(dst, src, bytes);
    drain();
}

#define FAR_SOURCES 64 /* sources whose places are moved along block by block; more are folded the plain way */

void hki_fold_far(hki_folder f, size_t elem_bytes, void *near, void *const *far, unsigned nfar, const void *const *src, unsigned nsrc,
                  size_t count, const hki_reduction *r, bool apply_finish)
{
    enum { BLOCK = 4096 };
    uint8_t block[BLOCK] __attribute__((aligned(HKI_LINE)));
    const void *from[FAR_SOURCES];
    const hki_copy_fn stream = streaming();
    if (nsrc > FAR_SOURCES) {
        void *first = near ? near : far[0];
        hki_fold_by(f, &first, 1, src, nsrc, count, r, apply_finish);
        for (unsigned k = near ? 0 : 1; k < nfar; k++) hki_copy(far[k], first, count * elem_bytes);
        return;
    }
    const size_t bytes = count * elem_bytes;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = hki_min(BLOCK, bytes - at);
        void *to = near ? (uint8_t *)near + at : block;
        for (unsigned k = 0; k < nsrc; k++) from[k] = (const uint8_t *)src[k] + at;
        hki_fold_by(f, &to, 1, from, nsrc, n / elem_bytes, r, apply_finish);
        for (unsigned k = 0; k < nfar; k++) stream((uint8_t *)far[k] + at, to, n);
    }
    drain();
}
