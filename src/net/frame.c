/* SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"

#include "base/wire.h"

#include <string.h>

#define FRAME_MAGIC 0x6b68u /* "hk" */
#define HELLO_MAGIC 0x6f6c6b68u /* "hklo" */

#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(const uint8_t *p, size_t n)
{
    uint64_t crc = 0xffffffff;
    for (uint64_t word; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; n--; p++) crc = _mm_crc32_u8((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}
#endif

/* Four bits at a time: the table fits one cache line, heads are 60 bytes. */
uint32_t hki_crc32c(const void *bytes, size_t n)
{
    static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                       0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    uint32_t crc = ~0u;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc_by_instruction(bytes, n);
#endif
    for (const uint8_t *p = bytes; n--; p++) {
        crc ^= *p;
        crc = table[crc & 15] ^ crc >> 4;
        crc = table[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

/* magic u16 | version u8 | kind u8 | bytes u32 | seq u64 | fingerprint u64 | desc 32 | extra u32 | crc u32 */
void hki_frame_pack(const hki_frame *f, uint8_t o[HKI_FRAME_HEAD])
{
    hki_put16(o, FRAME_MAGIC);
    o[2] = HKI_WIRE_VERSION;
    o[3] = f->kind;
    hki_put32(o + 4, f->bytes);
    hki_put64(o + 8, f->seq);
    hki_put64(o + 16, f->fingerprint);
    memcpy(o + 24, f->desc, 32);
    hki_put32(o + 56, f->extra);
    hki_put32(o + 60, hki_crc32c(o, 60));
}

bool hki_frame_parse(const uint8_t i[HKI_FRAME_HEAD], size_t max_bytes, hki_frame *f)
{
    if (hki_get16(i) != FRAME_MAGIC || i[2] != HKI_WIRE_VERSION || hki_get32(i + 60) != hki_crc32c(i, 60)) return false;
    f->kind = i[3];
    f->bytes = hki_get32(i + 4);
    f->seq = hki_get64(i + 8);
    f->fingerprint = hki_get64(i + 16);
    memcpy(f->desc, i + 24, 32);
    f->extra = hki_get32(i + 56);
    switch (f->kind) {
    case HKI_FRAME_DATA: return f->bytes <= max_bytes;
    case HKI_FRAME_FAIL: return f->bytes == sizeof(hki_notice);
    case HKI_FRAME_CALL: case HKI_FRAME_GOODBYE: case HKI_FRAME_WAIT: return f->bytes == 0;
    default: return false;
    }
}

/* magic u32 | version u16 | welcome u16 | uid u64 | token u64 | from u32 | to u32 | channel u32 | index u32 | zero | crc u32 at 60 */
void hki_hello_pack(const hki_tcp_hello *h, uint8_t o[HKI_HELLO])
{
    memset(o, 0, HKI_HELLO);
    hki_put32(o, HELLO_MAGIC);
    hki_put16(o + 4, HKI_WIRE_VERSION);
    hki_put16(o + 6, (uint16_t)h->welcome);
    hki_put64(o + 8, h->uid);
    hki_put64(o + 16, h->token);
    hki_put32(o + 24, h->from);
    hki_put32(o + 28, h->to);
    hki_put32(o + 32, h->channel);
    hki_put32(o + 36, h->index);
    hki_put32(o + 60, hki_crc32c(o, 60));
}

bool hki_hello_parse(const uint8_t i[HKI_HELLO], hki_tcp_hello *h)
{
    if (hki_get32(i) != HELLO_MAGIC || hki_get16(i + 4) != HKI_WIRE_VERSION || hki_get32(i + 60) != hki_crc32c(i, 60)) return false;
    h->welcome = hki_get16(i + 6);
    h->uid = hki_get64(i + 8);
    h->token = hki_get64(i + 16);
    h->from = hki_get32(i + 24);
    h->to = hki_get32(i + 28);
    h->channel = hki_get32(i + 32);
    h->index = hki_get32(i + 36);
    return h->welcome <= 2;
}
