/* SPDX-License-Identifier: Apache-2.0 */
#include "net/segment.h"

#include "os/os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x6b636f685f676573u
#define GONE UINT64_MAX /* the offset of a withdrawn directory entry */
#define HUGE ((size_t)2 << 20) /* pieces from which huge pages are asked for */
#define PROBES 64       /* entries looked at before a withdrawn one is used again */

int hki_segment_open(hki_segment *s, size_t bytes, bool shared)
{
    memset(s, 0, sizeof *s);
    s->fd = -1;
    s->bytes = bytes / hki_page() * hki_page();
    if (shared) {
        s->fd = hki_memfd(s->bytes);
        if (s->fd < 0) return s->fd;
        s->base = hki_map_shared(s->fd, s->bytes, true);
    } else {
        s->base = hki_map_private(s->bytes);
    }
    if (!s->base) {
        hki_close(s->fd);
        return -ENOMEM;
    }
    hki_random(&s->token, sizeof s->token);
    hki_segment_head *h = hki_segment_head_of(s->base);
    h->magic = MAGIC;
    h->token = s->token;
    h->bytes = s->bytes;
    h->pid = getpid();
    atomic_store(&h->fences, (uint32_t)hki_fence_join());
    s->used = hki_round_up(sizeof *h, hki_page());
    return 0;
}

static void drop(hki_range *r)
{
    while (r) {
        hki_range *next = r->next;
        hki_free(r);
        r = next;
    }
}

static void forget(hki_alias **at)
{
    hki_alias *gone = *at;
    *at = gone->next;
    hki_free(gone);
}

void hki_segment_close(hki_segment *s)
{
    hki_unmap(s->base, s->bytes);
    hki_close(s->fd);
    drop(s->holes);
    drop(s->taken);
    while (s->aliases) forget(&s->aliases);
    if (s->asked) hki_close(s->maps);
    memset(s, 0, sizeof *s);
    s->fd = -1;
}

/* First hole that is large enough, cut to size; else fresh memory. */
void *hki_segment_alloc(hki_segment *s, size_t bytes)
{
    if (bytes > s->bytes) return NULL;
    bytes = hki_round_up(bytes ? bytes : 1, hki_page());
    hki_range *r = hki_alloc(sizeof *r);
    if (!r) return NULL;
    r->bytes = bytes;
    hki_range **at = &s->holes;
    while (*at && (*at)->bytes < bytes) at = &(*at)->next;
    if (*at) {
        hki_range *hole = *at;
        r->offset = hole->offset;
        hole->offset += bytes;
        hole->bytes -= bytes;
        if (hole->bytes == 0) {
            *at = hole->next;
            hki_free(hole);
        }
    } else if (s->bytes - s->used >= bytes) {
        r->offset = s->used;
        s->used += bytes;
    } else {
        hki_free(r);
        return NULL;
    }
    r->next = s->taken;
    s->taken = r;
    if (bytes >= HUGE) hki_advise_huge(s->base + r->offset, bytes);
    return s->base + r->offset;
}

/* Holes are used again oldest first, so that a late reader of a former area finds zeros rather than a successor for long. */
bool hki_segment_free(hki_segment *s, void *ptr)
{
    for (hki_range **at = &s->taken; *at; at = &(*at)->next) {
        hki_range *r = *at;
        if (s->base + r->offset != ptr) continue;
        *at = r->next;
        hki_punch(ptr, r->bytes);
        r->next = NULL;
        hki_range **tail = &s->holes;
        while (*tail) tail = &(*tail)->next;
        *tail = r;
        return true;
    }
    return false;
}

bool hki_segment_find(const hki_segment *s, const void *ptr, size_t bytes, uint64_t *at)
{
    const uint8_t *p = ptr;
    if (p >= s->base && (size_t)(p - s->base) < s->used && bytes <= s->used - (size_t)(p - s->base)) return *at = (size_t)(p - s->base), true;
    for (const hki_alias *a = s->aliases; a; a = a->next)
        if (p >= a->at && (size_t)(p - a->at) < a->bytes && bytes <= a->bytes - (size_t)(p - a->at)) return *at = a->offset + (size_t)(p - a->at), true;
    return false;
}

/* ---- Memory of the program --------------------------------------------------------------------------------------------- */

static int maps_of(hki_segment *s)
{
    if (!s->asked) s->maps = hki_maps_open();
    s->asked = true;
    return s->maps;
}

/* Are the alias's pages still those of the segment? */
static bool holds(hki_segment *s, const hki_alias *a)
{
    const uint64_t inode = hki_inode(s->fd);
    hki_mapping m;
    for (const uint8_t *p = a->at; p < a->at + a->bytes; p = (const uint8_t *)(uintptr_t)m.end)
        if (!hki_mapping_at(maps_of(s), p, &m) || !m.shared || m.inode != inode ||
            m.offset + ((uintptr_t)p - m.start) != a->offset + (size_t)(p - a->at)) return false;
    return true;
}

bool hki_segment_has(hki_segment *s, const void *ptr, size_t bytes)
{
    const uint8_t *p = ptr;
    if (p < s->base + s->used && p + bytes > s->base) return true;
    for (hki_alias **at = &s->aliases; *at;) {
        const hki_alias *a = *at;
        const bool touches = p < a->at + a->bytes && p + bytes > a->at;
        if (touches && holds(s, a)) return true;
        if (touches) forget(at);
        else at = &(*at)->next;
    }
    return false;
}

static const char *objection(hki_segment *s, uint8_t *at, size_t bytes)
{
    hki_mapping m;
    if (s->fd < 0) return "this process has no memory file that others could map (ranks are threads, or the kernel refuses one)";
    for (uint8_t *p = at; p < at + bytes; p = (uint8_t *)(uintptr_t)m.end)
        if (!hki_mapping_at(maps_of(s), p, &m) || !m.plain)
            return "not plain memory: shared, mapped from a file, read-only, on a stack, or not mapped at all";
    return NULL;
}

const char *hki_segment_adopt(hki_segment *s, void *ptr, size_t bytes)
{
    const size_t page = hki_page();
    uint8_t *at = (uint8_t *)hki_round_up((uintptr_t)ptr, page), *end = (uint8_t *)(((uintptr_t)ptr + bytes) / page * page);
    if (end <= at) return "no whole page in it";
    const size_t n = (size_t)(end - at);
    if (hki_segment_has(s, at, n)) return "some of it is seen by peers already";
    const char *why = objection(s, at, n);
    if (why) return why;
    hki_alias *a = hki_alloc(sizeof *a);
    uint8_t *copy = a ? hki_segment_alloc(s, n) : NULL;
    if (!copy) {
        hki_free(a);
        return "no room in the segment";
    }
    memcpy(copy, at, n);
    if (!hki_map_over(at, n, s->fd, (uint64_t)(copy - s->base))) {
        hki_segment_free(s, copy);
        hki_free(a);
        return "the kernel refuses to map it";
    }
    *a = (hki_alias){at, n, (size_t)(copy - s->base), s->aliases};
    s->aliases = a;
    return NULL;
}

/* Where the alias of a call with that ptr hangs; NULL there: there is none. */
static hki_alias **alias_of(hki_segment *s, const void *ptr)
{
    const uint8_t *first = (const uint8_t *)hki_round_up((uintptr_t)ptr, hki_page());
    hki_alias **at = &s->aliases;
    while (*at && (*at)->at != first) at = &(*at)->next;
    return at;
}

size_t hki_segment_adopted(hki_segment *s, const void *ptr)
{
    const hki_alias *a = *alias_of(s, ptr);
    return a ? a->bytes : 0;
}

bool hki_segment_disown(hki_segment *s, void *ptr)
{
    hki_alias **at = alias_of(s, ptr);
    if (!*at) return false;
    const hki_alias a = **at;
    const bool ours = holds(s, &a);
    forget(at);
    if (!ours) return true; /* it was unmapped: nothing to move */
    if (hki_map_private_over(a.at, a.bytes)) {
        memcpy(a.at, s->base + a.offset, a.bytes);
        hki_segment_free(s, s->base + a.offset);
    }
    return true;
}

static void enter(hki_segment_head *h, uint32_t e, uint64_t uid, uint64_t offset)
{
    atomic_store(&h->directory[e].uid, (uint64_t)0); /* nobody may pair an old uid with a new offset */
    atomic_store(&h->directory[e].offset, offset);
    atomic_store(&h->directory[e].uid, uid);
}

hk_status hki_segment_publish(hki_segment *s, uint64_t uid, const void *area)
{
    hki_segment_head *h = hki_segment_head_of(s->base);
    const uint64_t offset = (uint64_t)((const uint8_t *)area - s->base);
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < (pass ? HKI_DIRECTORY : PROBES); i++) {
            const uint32_t e = (uint32_t)((uid + i) % HKI_DIRECTORY);
            const bool unused = atomic_load(&h->directory[e].uid) == 0 || (pass && atomic_load(&h->directory[e].offset) == GONE);
            if (unused) return enter(h, e, uid, offset), HK_OK;
        }
    return HK_NO_MEMORY;
}

void hki_segment_withdraw(hki_segment *s, uint64_t uid)
{
    hki_segment_head *h = hki_segment_head_of(s->base);
    for (uint32_t i = 0; i < HKI_DIRECTORY; i++) {
        const uint32_t e = (uint32_t)((uid + i) % HKI_DIRECTORY);
        if (atomic_load(&h->directory[e].uid) == uid) {
            atomic_store(&h->directory[e].offset, GONE);
            return;
        }
    }
}

uint8_t *hki_view_find(const hki_view *v, uint64_t uid, size_t bytes, bool *left)
{
    hki_segment_head *h = hki_segment_head_of(v->base);
    for (uint32_t i = 0; i < HKI_DIRECTORY; i++) {
        const uint32_t e = (uint32_t)((uid + i) % HKI_DIRECTORY);
        const uint64_t have = atomic_load(&h->directory[e].uid);
        if (have == 0 && i >= PROBES) return NULL;
        if (have != uid) continue;
        const uint64_t offset = atomic_load(&h->directory[e].offset);
        *left = offset == GONE;
        if (offset % HKI_LINE || offset > v->bytes || bytes > v->bytes - offset) return NULL;
        return v->base + offset;
    }
    return NULL;
}

hki_view *hki_view_open(int fd, uint64_t token, const char *bell)
{
    hki_segment_head *h = hki_map_shared(fd, sizeof *h, true);
    if (!h) return NULL;
    const uint64_t bytes = h->bytes;
    const bool meant = h->magic == MAGIC && h->token == token && bytes >= sizeof *h && bytes <= (uint64_t)64 << 30;
    hki_unmap(h, sizeof *h);
    uint8_t *base = meant ? hki_map_shared(fd, bytes, true) : NULL;
    hki_view *v = base ? hki_alloc(sizeof *v) : NULL;
    if (!v) {
        hki_unmap(base, bytes);
        return NULL;
    }
    v->base = base;
    v->bytes = bytes;
    v->fd = fd;
    v->token = token;
    snprintf(v->bell, sizeof v->bell, "%s", bell);
    return v;
}

hki_view *hki_view_of(const hki_segment *s, const char *bell)
{
    hki_view *v = hki_alloc(sizeof *v);
    if (!v) return NULL;
    v->base = s->base;
    v->bytes = s->bytes;
    v->fd = -1;
    v->token = s->token;
    snprintf(v->bell, sizeof v->bell, "%s", bell);
    return v;
}

void hki_view_close(hki_view *v)
{
    if (v->fd >= 0) {
        hki_unmap(v->base, v->bytes);
        hki_close(v->fd);
    }
    hki_free(v);
}
