/* SPDX-License-Identifier: Apache-2.0
 *
 * How ranks that know nothing but a place find each other: one of them, the host, listens there; the others come; then they swap
 * fixed-size blobs in rounds, every rank getting all of them. Closed as soon as the communicator stands.
 *
 * Strangers do no harm: a connection must state the right magic, version and job within 5 s, a refusal says why, nothing is allocated
 * from a length that a peer sent, and pending connections are bounded. docs/wire.md is the standard of the bytes. */
#ifndef HKI_BOOT_H
#define HKI_BOOT_H

#include "base/base.h"

#define HKI_MEETING_TEXT 256
#define HKI_PLACE_ADDRESSES 4

/* Where to meet: a local socket, or a port at one of some numeric addresses, or both (local first). */
typedef struct hki_place {
    uint64_t job;                /* names the job: others are refused */
    char local[64];              /* abstract socket name; "" = none */
    char address[HKI_PLACE_ADDRESSES][64];
    int addresses;
    uint16_t port;               /* 0 = no TCP */
    char shown[300];             /* how messages call the place */
} hki_place;

typedef struct hki_meeting hki_meeting;

/* Opens the place's listening sockets in out[0..2) (-1: none). port 0 with `any_port` picks one and stores it. -errno on failure. */
int hki_place_listen(hki_place *, bool any_port, int out[2]);

/* Called again and again while a meeting waits; true: there is something to keep moving, call again within milliseconds. */
typedef struct hki_idle { bool (*call)(void *); void *arg; } hki_idle;

/* The host's end; takes the listening sockets over. NULL without memory. */
hki_meeting *hki_meeting_host(const int listening[2], const hki_place *, uint32_t ranks, uint32_t rank, hki_idle idle);
/* Another rank's end: connects, with patience, until the deadline. NULL with text. */
hki_meeting *hki_meeting_join(const hki_place *, uint32_t ranks, uint32_t rank, hki_idle idle, uint64_t deadline_us,
                              char text[HKI_MEETING_TEXT]);

/* all (ranks * bytes) = everybody's mine (bytes), on every rank. The same bytes on all ranks. On failure text names who is missing. */
hk_status hki_meeting_swap(hki_meeting *, const void *mine, void *all, size_t bytes, uint64_t deadline_us, char text[HKI_MEETING_TEXT]);
void hki_meeting_close(hki_meeting *);

/* ---- What the environment says (env.c) */
typedef struct hki_launch {
    uint32_t rank, ranks;
    const char *from;            /* which launcher's variables were used */
    hki_place place;
    int pmi_fd;                  /* >= 0: the place is to be swapped by PMI-1 (hki_pmi_swap_place) */
} hki_launch;
/* false with text: what was looked for, and the line to add. */
bool hki_launch_read(hki_launch *, char text[512]);

/* ---- Meeting by PMI-1 (pmi.c): gives the place of the rank whose it is (mine) to all others. */
bool hki_pmi_swap_place(int fd, hki_place *, bool mine, uint64_t deadline_us, char text[HKI_MEETING_TEXT]);

#endif
