/* SPDX-License-Identifier: Apache-2.0
 * Heads of TCP frames and hellos: any 64 bytes are refused, or packing what was read gives a head that reads the same. Each input
 * is tried as it is and with its checksum put right, which chance would not find. */
#include "base/wire.h"
#include "net/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 20 };

static void need(bool holds)
{
    if (!holds) abort();
}

static void frame(const uint8_t head[HKI_FRAME_HEAD])
{
    uint8_t packed[HKI_FRAME_HEAD];
    hki_frame a = {0}, b = {0};
    if (!hki_frame_parse(head, MOST, &a)) return;
    need(a.bytes <= MOST);
    hki_frame_pack(&a, packed);
    need(hki_frame_parse(packed, MOST, &b));
    need(a.kind == b.kind && a.bytes == b.bytes && a.seq == b.seq && a.fingerprint == b.fingerprint);
    need(!memcmp(a.desc, b.desc, sizeof a.desc));
}

static void hello(const uint8_t head[HKI_HELLO])
{
    uint8_t packed[HKI_HELLO];
    hki_tcp_hello a = {0}, b = {0};
    if (!hki_hello_parse(head, &a)) return;
    hki_hello_pack(&a, packed);
    need(hki_hello_parse(packed, &b));
    need(a.uid == b.uid && a.token == b.token && a.from == b.from && a.to == b.to);
    need(a.channel == b.channel && a.welcome == b.welcome);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t head[64] = {0};
    _Static_assert(HKI_FRAME_HEAD == 64 && HKI_HELLO == 64, "one buffer for both");
    if (size) memcpy(head, data, hki_min(size, sizeof head));
    for (int fixed = 0; fixed < 2; fixed++) {
        frame(head);
        hello(head);
        hki_put32(head + 60, hki_crc32c(head, 60));
    }
    return 0;
}
