/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said about operations and failures: the meaning of the fixed-size records and notices that transports carry, and the
 * sentences made of them. Everything here that came from a peer is only printed, never used as an index. */
#ifndef HKI_REPORT_H
#define HKI_REPORT_H

#include "net/net.h"
#include "plan/call.h"

#define HKI_TEXT 512

/* A call as shown to others. */
typedef struct hki_desc {
    uint8_t op, dtype, redop, wire;
    int32_t root;     /* or peer, for send and recv */
    uint64_t count;
    int32_t tag;
    uint32_t algorithm; /* hash of its name */
    uint64_t extra;   /* uneven forms: hash of the counts; premul: the factor's bits */
} hki_desc;
_Static_assert(sizeof(hki_desc) == 32, "fixed size");

/* The body of a notice. */
typedef struct hki_cause {
    uint32_t reporter;       /* who noticed */
    uint32_t step, steps;    /* how far its operation was */
    uint32_t waited_ms;
    uint64_t seq, their_seq; /* the operation; for a mismatch, the culprit's too (0 = unknown) */
    hki_desc mine, theirs;
    uint8_t room[24];
} hki_cause;
_Static_assert(sizeof(hki_cause) == sizeof(((hki_notice *)0)->body), "fills a notice");

void hki_desc_of(const hki_call *, int tag, uint64_t extra, uint32_t algorithm, hki_desc *);
/* 64 bits over everything that must agree, without the sequence. */
uint64_t hki_desc_fingerprint(uint64_t uid, const hki_desc *);
/* "all_reduce #812 f32[1000] sum", "broadcast #3 f32[5] root 1"; without the number if seq is 0 */
void hki_desc_text(const hki_desc *, uint64_t seq, char *out, size_t cap);
/* "rank 2 (host b, pid 77)" */
void hki_rank_text(hki_peer *const *peers, uint32_t ranks, uint32_t rank, char *out, size_t cap);
/* The sentence for a broken communicator, as seen by `me`. */
void hki_notice_text(const hki_notice *, hki_peer *const *peers, uint32_t ranks, uint32_t me, char out[HKI_TEXT]);

#endif
