/* SPDX-License-Identifier: Apache-2.0
 * hk_config and the environment become settings: config first, then environment, then default. */
#include "comm/comm.h"

#include "kern/kern.h"
#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool time_knob(const char *name, uint64_t given, uint64_t fallback, uint64_t *out, char error[160])
{
    const char *text = given ? NULL : hki_env(name);
    *out = given ? given : fallback;
    if (!text || (hki_parse_time(text, out) && *out)) return true;
    return snprintf(error, 160, "%s='%.40s' is no time: write seconds, or 300ms, 5s, 2min", name, text), false;
}

/* One of a list of words; its index. */
static bool word_knob(const char *what, const char *name, const char *given, const char *const *words, unsigned n, unsigned *out, char error[160])
{
    const char *text = given ? given : hki_env(name);
    *out = 0;
    if (!text) return true;
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(text, words[i])) return *out = i, true;
    int k = snprintf(error, 160, "%s '%.40s' is not one of", what, text);
    for (unsigned i = 0; i < n; i++) k += snprintf(error + k, (size_t)(160 - k), "%s %s", i ? "," : "", words[i]);
    return false;
}

static bool number_knob(const char *name, size_t low, size_t high, size_t fallback, size_t *out, char error[160])
{
    const char *text = hki_env(name);
    *out = fallback;
    if (!text) return true;
    char *end;
    const unsigned long long v = strtoull(text, &end, 10);
    if (*end || v < low || v > high) return snprintf(error, 160, "%s='%.40s' must be a number from %zu to %zu", name, text, low, high), false;
    *out = (size_t)v;
    return true;
}

static uint64_t text_hash(const char *text) { return text ? hki_hash_bytes(3, text, strlen(text)) : 0; }

hk_status hki_settings_read(hki_settings *s, const hk_config *given, char error[160])
{
    static const char *const transports[] = {"auto", "shm", "tcp"}, *const executors[] = {"auto", "inline", "event"},
                      *const levels[] = {"run", "strict"};
    hk_config c = HK_CONFIG_INIT;
    memset(s, 0, sizeof *s);
    if (given) {
        if (given->size < offsetof(hk_config, init_timeout_us) || given->size > 4096)
            return snprintf(error, 160, "config.size is %zu: start from HK_CONFIG_INIT", given->size), HK_INVALID;
        memcpy(&c, given, hki_min(sizeof c, given->size));
    }
    static const char *const switches[] = {"0", "1"};
    unsigned transport, executor, level, stats;
    size_t slots, sockets, sockbuf; /* sockbuf: read where sockets are made, checked here */
    if (!time_knob("HOCKET_TIMEOUT", c.timeout_us, 300000000, &s->timeout_us, error) ||
        !time_knob("HOCKET_INIT_TIMEOUT", c.init_timeout_us, 30000000, &s->init_timeout_us, error) ||
        !time_knob("HOCKET_STALL", 0, 10000000, &s->stall_us, error) ||
        !word_knob("transport", "HOCKET_TRANSPORT", c.transport, transports, 3, &transport, error) ||
        !word_knob("executor", "HOCKET_EXECUTOR", c.executor, executors, 3, &executor, error) ||
        !word_knob("determinism", "HOCKET_DETERMINISM", c.determinism, levels, 2, &level, error) ||
        !word_knob("HOCKET_STATS", "HOCKET_STATS", NULL, switches, 2, &stats, error) ||
        !number_knob("HOCKET_SLOT_BYTES", 4096, 4194304, 0, &s->slot_bytes, error) || !number_knob("HOCKET_SLOTS", 2, 64, 8, &slots, error) ||
        !number_knob("HOCKET_SOCKETS", 1, 4, 1, &sockets, error) || !number_knob("HOCKET_SOCKBUF", 1024, (size_t)1 << 30, 0, &sockbuf, error))
        return HK_INVALID;
    const char *pace = hki_env("HOCKET_PACE"), *algo = c.algorithm ? c.algorithm : hki_env("HOCKET_ALGO"), *isa = hki_env("HOCKET_ISA");
    if (pace && !hki_parse_rate(pace, &s->pace)) return snprintf(error, 160, "HOCKET_PACE='%.40s' is no rate: write 1gbit, 100mbit or bytes/s", pace), HK_INVALID;
    if (!hki_kern_init(isa)) return snprintf(error, 160, "HOCKET_ISA='%.40s' is unknown or this CPU does not have it (`hocket info kernels`)", isa), HK_INVALID;
    if (!hki_forced_parse(algo, &s->forced, error)) return HK_INVALID;
    const char *trace = hki_env("HOCKET_TRACE");
    const int folder = trace ? hki_folder_make(trace) : 0;
    if (folder) return snprintf(error, 160, "HOCKET_TRACE='%.60s' is no folder to write to (%s): name one, or one to be made", trace,
                                strerror(-folder)), HK_INVALID;
    s->timeout_us = hki_min(s->timeout_us, HKI_NO_LIMIT_US);
    s->init_timeout_us = hki_min(s->init_timeout_us, HKI_NO_LIMIT_US);
    s->stall_us = hki_min(s->stall_us, HKI_NO_LIMIT_US);
    s->forced_hash = text_hash(algo);
    s->transport = (uint8_t)transport;
    s->executor = (hki_executor)executor;
    s->strict = level == 1;
    s->stats = stats == 1;
    s->slot_bytes = s->slot_bytes / HKI_LINE * HKI_LINE;
    s->slots = (uint32_t)slots;
    s->sockets = (uint32_t)sockets;
    return HK_OK;
}
