/* SPDX-License-Identifier: Apache-2.0
 * The bytes on a TCP lane: pure functions between structs and buffers, total over any input. docs/wire.md is the standard.
 *
 * A connection begins with a hello from the side that dialled and a welcome from the other; then frames, a head of 64 bytes and
 * `bytes` of payload each. Every head ends in a CRC32C over the rest. */
#ifndef HKI_FRAME_H
#define HKI_FRAME_H

#include "net/net.h"

#define HKI_FRAME_HEAD 64
#define HKI_HELLO 64

typedef enum hki_frame_kind { HKI_FRAME_DATA = 1, HKI_FRAME_CALL, HKI_FRAME_FAIL, HKI_FRAME_GOODBYE, HKI_FRAME_WAIT } hki_frame_kind;

typedef struct hki_frame {
    uint8_t kind;
    uint32_t bytes;           /* of payload: DATA any, FAIL sizeof(hki_notice), else 0 */
    uint64_t seq, fingerprint; /* DATA: of the operation it belongs to; CALL: of the operation entered */
    uint8_t desc[32];         /* that operation, for reports */
    uint32_t extra;           /* DATA: number of the message in its lane; WAIT: the rank that the sender waits for; else 0 */
} hki_frame;

typedef struct hki_tcp_hello {
    uint64_t uid, token;      /* communicator; the process that is meant */
    uint32_t from, to, channel, index; /* index: of the sockets that the dialler's large messages go on */
    uint32_t welcome;         /* 0: hello; 1: welcome; 2: you are wrong here */
} hki_tcp_hello;

void hki_frame_pack(const hki_frame *, uint8_t out[HKI_FRAME_HEAD]);
/* false: these bytes are no frame head. max_bytes: the largest payload allowed. */
bool hki_frame_parse(const uint8_t in[HKI_FRAME_HEAD], size_t max_bytes, hki_frame *);
void hki_hello_pack(const hki_tcp_hello *, uint8_t out[HKI_HELLO]);
bool hki_hello_parse(const uint8_t in[HKI_HELLO], hki_tcp_hello *);
/* CRC32C (Castagnoli, RFC 3720 appendix B.4). */
uint32_t hki_crc32c(const void *, size_t);

#endif
