/* SPDX-License-Identifier: Apache-2.0
 * Little-endian fields in byte buffers: how everything that crosses a process boundary by socket is written and read. */
#ifndef HKI_WIRE_H
#define HKI_WIRE_H

#include "base/base.h"

#include <string.h>

static inline void hki_put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)v, p[1] = (uint8_t)(v >> 8); }
static inline void hki_put32(uint8_t *p, uint32_t v) { hki_put16(p, (uint16_t)v), hki_put16(p + 2, (uint16_t)(v >> 16)); }
static inline void hki_put64(uint8_t *p, uint64_t v) { hki_put32(p, (uint32_t)v), hki_put32(p + 4, (uint32_t)(v >> 32)); }
static inline uint16_t hki_get16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t hki_get32(const uint8_t *p) { return hki_get16(p) | (uint32_t)hki_get16(p + 2) << 16; }
static inline uint64_t hki_get64(const uint8_t *p) { return hki_get32(p) | (uint64_t)hki_get32(p + 4) << 32; }
/* Text of at most n bytes including its end; whatever came, out is terminated. */
static inline void hki_put_text(uint8_t *p, const char *text, size_t n)
{
    memset(p, 0, n);
    memcpy(p, text, strnlen(text, n - 1));
}
static inline void hki_get_text(const uint8_t *p, char *text, size_t n)
{
    memcpy(text, p, n - 1);
    text[n - 1] = 0;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?'; /* it will be printed */
}

#endif
