/* SPDX-License-Identifier: Apache-2.0
 *
 * A segment: the one stretch of memory that a rank shows to ranks on its host. Lanes, slots and hk_mem_alloc memory are parts of it,
 * so a reference is an offset and nothing has to be passed later. Only its owner writes it.
 *
 * It starts with a head {magic, token, asleep, directory}. The directory maps a communicator's uid to where its area lies, so ranks
 * find each other's lanes without exchanging anything. Everything read from another rank's segment is validated here. */
#ifndef HKI_SEGMENT_H
#define HKI_SEGMENT_H

#include "base/base.h"

#include <stdatomic.h>

#define HKI_DIRECTORY 4096 /* communicators of one process at a time */

typedef struct hki_segment_head {
    uint64_t magic;
    uint64_t token;
    uint64_t bytes;
    int64_t pid;
    _Atomic uint32_t fences;    /* the owner's sleepers call hki_fence_all, and its CPUs take part in that of others */
    _Alignas(HKI_LINE) _Atomic uint32_t asleep; /* threads of the owner that sleep and want the bell rung */
    _Alignas(HKI_LINE) struct { _Atomic uint64_t uid, offset; } directory[HKI_DIRECTORY];
} hki_segment_head;

/* Another process's segment as mapped here. Ranks of one process share the memory directly (fd == -1). */
typedef struct hki_view {
    uint8_t *base;
    size_t bytes;
    int fd;               /* kept to see whether the owner lives; -1 in the same process */
    uint64_t token;
    char bell[32];
    uint32_t users;
    struct hki_view *next;
} hki_view;

typedef struct hki_range { size_t offset, bytes; struct hki_range *next; } hki_range;

/* Memory of the program whose pages were moved into the segment: it is at its address and at base + offset. */
typedef struct hki_alias { uint8_t *at; size_t bytes, offset; struct hki_alias *next; } hki_alias;

typedef struct hki_segment {
    uint8_t *base;
    size_t bytes, used;   /* used: everything beyond was never handed out */
    int fd;               /* -1: private to this process */
    uint64_t token;
    hki_range *holes, *taken;
    hki_alias *aliases;
    int maps;             /* hki_maps_open, on first use */
    bool asked;           /* there was a first use */
} hki_segment;

/* shared: others may map it (needs memfd; -errno if refused). Otherwise visible within this process only. */
int hki_segment_open(hki_segment *, size_t bytes, bool shared);
void hki_segment_close(hki_segment *);
/* Page-aligned zeroed memory; NULL when the segment is full. */
void *hki_segment_alloc(hki_segment *, size_t bytes);
/* false if ptr is none of ours. */
bool hki_segment_free(hki_segment *, void *ptr);

/* Where in the segment [ptr, ptr + bytes) is, if all of it was handed out or moved here; false: it is not. */
bool hki_segment_find(const hki_segment *, const void *ptr, size_t bytes, uint64_t *at);
/* Is any of [ptr, ptr + bytes) such memory? Memory that was moved here and has been unmapped or remapped since is seen to be so, and
 * forgotten; its place in the segment is not used again, as it may be mapped elsewhere now. */
bool hki_segment_has(hki_segment *, const void *ptr, size_t bytes);
/* Moves the whole pages of [ptr, ptr + bytes) into the segment, contents and address kept. No other thread may write there meanwhile.
 * NULL on success, else why not. */
const char *hki_segment_adopt(hki_segment *, void *ptr, size_t bytes);
/* How many bytes a call with that ptr moved; 0: there was none. */
size_t hki_segment_adopted(hki_segment *, const void *ptr);
/* Moves them back; false: there was no call with that ptr. */
bool hki_segment_disown(hki_segment *, void *ptr);

static inline hki_segment_head *hki_segment_head_of(const uint8_t *base) { return (hki_segment_head *)(uintptr_t)base; }
hk_status hki_segment_publish(hki_segment *, uint64_t uid, const void *area);
void hki_segment_withdraw(hki_segment *, uint64_t uid);
/* The area of that communicator in another's segment, `bytes` long; NULL if it is not there yet, was withdrawn (*left) or does not fit.
 * Withdrawn entries stay until their place is needed. */
uint8_t *hki_view_find(const hki_view *, uint64_t uid, size_t bytes, bool *left);

/* Maps fd; NULL unless it is the segment with that token. Takes the descriptor over when it succeeds. */
hki_view *hki_view_open(int fd, uint64_t token, const char *bell);
hki_view *hki_view_of(const hki_segment *, const char *bell); /* same process */
void hki_view_close(hki_view *);

#endif
