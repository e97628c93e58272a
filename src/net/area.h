/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes in memory. Each rank has one *area* per communicator in its own segment, laid out alike on all ranks:
 *
 *     head    state, failure notice, what this rank is doing, its last calls
 *     acks    [channel][source]       how far this rank has read the source's lane
 *     lanes   [channel][destination]  a ring of 16 lines
 *     cards   [channel][destination]  a card for each line
 *     slots   [channel]               a ring of payload, shared by the channel's destinations
 *
 * A line holds up to 48 bytes of payload, or where else the payload is, and one word {32-bit sequence | 32 bits of fingerprint}, stored
 * last with release order. Up to 1 KiB for one reader goes on the line's card: the reader knows where that is before there is a message, so
 * it is on its way as soon as the line is. (More lines than 16 would do for streams of messages, but cost every message: 64 lines 10 %
 * of a swap of 8 bytes, lines without a gap between them as much.) Sequences start at 1 and only grow, so memory that
 * was never written is never taken for a message. A line is written again only when the reader's ack has passed it, a piece of the ring
 * when every addressed reader's has. The ring has room for shape.slots messages of the largest size at least.
 *
 * Between ranks that see each other's segments large messages go without a copy (net/lane.h): a line then names a place in the sender's
 * segment (lent) or, if the reader had told of a wish with an earlier message of its own, in the reader's (put).
 *
 * Sleep: a sleeper raises `asleep` in its segment head and looks once more; a writer publishes, then reads `asleep`. With a full fence
 * between the two on both sides one sees the other. Where both processes can (segment heads' `fences`), the sleeper alone pays for it:
 * its hki_fence_all() is a fence on every CPU that runs one of them, and a writer's store costs a store. */
#ifndef HKI_AREA_H
#define HKI_AREA_H

#include "net/net.h"

#define HKI_SHM_LINES 16
#define HKI_SHM_INLINE 48 /* bytes of payload that fit a line */
#define HKI_SHM_CARD 1024 /* and its card */
#define HKI_SHM_RING (1 << 20) /* bytes of a channel's ring at least */
#define HKI_SHM_LENT 1024     /* bytes from which a message is worth lending or putting */
#define HKI_RECORDS 32

enum { HKI_AREA_LIVE = 1, HKI_AREA_FAILED };

/* What a rank is doing, for reports about it: written by its owner without a lock, read as a hint. 128 bytes, laid out as hk_tool_now. */
typedef struct hki_now {
    _Atomic uint64_t seq, finished;     /* operations entered, finished */
    _Atomic uint64_t count, bytes;      /* of the operation */
    _Atomic uint32_t op, dtype;
    _Atomic uint32_t step, steps;
    _Atomic uint32_t waiting_for;       /* a rank, UINT32_MAX none */
    _Atomic uint32_t state;             /* 0 outside the library, 1 running, 2 waiting */
    _Atomic uint64_t since_us;          /* CLOCK_MONOTONIC when this operation was entered */
    _Atomic uint64_t seen_us;           /* when a wait was last looked after */
    char pad[56];
} hki_now;
_Static_assert(sizeof(hki_now) == 128, "fixed size");

typedef struct hki_area_head {
    _Atomic uint64_t uid;               /* of the communicator; anything else: the owner has left and the memory is another's */
    _Atomic uint32_t state;             /* on a line that rarely changes: others look at it before each operation */
    _Alignas(HKI_LINE) _Atomic uint32_t putting; /* the owner is writing to memory of another */
    _Alignas(HKI_LINE) hki_notice notice; /* valid once state is HKI_AREA_FAILED */
    _Alignas(HKI_LINE) hki_now now;
    _Alignas(HKI_LINE) _Atomic uint64_t entered; /* last sequence in records[] */
    _Alignas(HKI_LINE) hki_record records[HKI_RECORDS]; /* records[seq % HKI_RECORDS], valid up to `entered` */
} hki_area_head;

typedef struct hki_area {
    hki_shape shape;
    hki_segment *segment;
    uint8_t *base;                      /* ours */
    size_t bytes, acks, lanes, cards, slots; /* offsets */
    hki_peer *const *peers;             /* by rank; view NULL: not by this transport */
    uint8_t **there;                    /* by rank: its area once found */
    bool *left;                         /* by rank: it had withdrawn its area before this rank looked */
    int bell;                           /* descriptor to ring others with */
} hki_area;

/* Makes and publishes this rank's area. peers must outlive it. */
hk_status hki_area_open(hki_area *, const hki_shape *, hki_segment *, hki_peer *const *peers, int bell);
/* Withdraws and frees it: only when no peer needs what it holds any more. The head of a failed one stays behind, a page until the
 * process ends, for ranks that come to look at the notice later. */
void hki_area_close(hki_area *);
static inline hki_area_head *hki_area_mine(const hki_area *a) { return (hki_area_head *)a->base; }
/* The head of another rank's area; NULL if it has none (yet). */
hki_area_head *hki_area_of(hki_area *, uint32_t rank);
/* Has that rank ended this communicator on its side? */
bool hki_area_left(hki_area *, uint32_t rank);
/* This rank has entered call `seq`: a record of it, of which the first `words` of its body. */
void hki_area_enter(hki_area *, uint64_t seq, uint64_t fingerprint, const uint64_t *body, size_t words);
/* The call `seq` of another rank, if it has entered it and it is not too long ago. */
bool hki_area_entered(hki_area *, uint32_t rank, uint64_t seq, hki_record *);
void hki_area_fail(hki_area *, const hki_notice *);
/* Wakes every rank of the communicator that sleeps. */
void hki_area_ring(hki_area *);

hki_port *hki_shm_port(hki_area *, uint32_t channel); /* NULL without memory */

#endif
