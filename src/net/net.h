/* SPDX-License-Identifier: Apache-2.0
 *
 * What transports know of a communicator and its ranks, and how they are listed.
 *
 * Every failure, and what each rank is doing, travels as a fixed-size record that transports carry without looking inside (comm gives
 * it meaning): a *notice* says why a communicator broke, a *call record* which operation a rank has entered. */
#ifndef HKI_NET_H
#define HKI_NET_H

#include "net/lane.h"
#include "net/segment.h"

/* A transport's entry in the registry. */
typedef struct hki_transport {
    const char *name, *summary;
    bool near;                       /* lets ranks of one host share memory */
    const struct hki_remote *remote; /* reaches ranks of other hosts (remote.h); NULL: does not */
} hki_transport;
extern const hki_transport *const hki_transports[]; /* NULL-terminated, generated */
/* Has this build a transport that lets ranks of one host share memory? */
bool hki_transport_near(void);
/* The verbs of the transport between hosts; NULL: this build has none. */
const struct hki_remote *hki_transport_remote(void);

#define HKI_ADDRESSES 4
#define HKI_WIRE_VERSION 1

/* What a rank tells the others of itself when they meet. */
typedef struct hki_peer {
    char host[64];
    int32_t pid;
    uint64_t host_key, token;       /* token: names the process's segment, proves that it is the one meant */
    char bell[32];                  /* its doorbell */
    char address[HKI_ADDRESSES][64];
    uint16_t port;                  /* TCP, 0 = does not listen */
    uint32_t group;                 /* ranks of equal group share memory */
    hki_view *view;                 /* its segment as seen here; NULL: no shared memory with it */
} hki_peer;

/* Why a communicator broke. */
typedef struct hki_notice { int32_t status; uint32_t culprit; uint8_t body[120]; } hki_notice;
/* Which operation a rank has entered. */
typedef struct hki_record { uint64_t seq, fingerprint; uint8_t body[48]; } hki_record;
_Static_assert(sizeof(hki_notice) == 128 && sizeof(hki_record) == 64, "fixed-size records");

/* The shape of a communicator, equal on all ranks. */
typedef struct hki_shape {
    uint64_t uid;                   /* names the communicator */
    uint32_t ranks, rank, channels, slots;
    size_t slot_bytes;
    uint32_t sockets;               /* of TCP each way between two ranks; 0 counts as 1 */
    bool crowded;                   /* on some host ranks outnumber CPUs */
} hki_shape;

#endif
