/* SPDX-License-Identifier: Apache-2.0
 * The one table of environment knobs, and the units their values come in. */
#include "os/os.h"

#include <stdlib.h>
#include <string.h>

static const hki_knob knobs[] = {
    {"HOCKET_DEBUG", "VERSION, WARN, INFO, TRACE", "how much to log; default WARN"},
    {"HOCKET_DEBUG_SUBSYS", "INIT,COLL,P2P,SHM,NET,TUNING,ENV,BOOTSTRAP,ALL; leading ^ inverts", "which parts log at INFO and TRACE; default INIT,BOOTSTRAP,ENV"},
    {"HOCKET_DEBUG_FILE", "path, %h host, %p pid", "where the log goes; default standard error"},
    {"HOCKET_TIMEOUT", "seconds, or 300ms, 5s, 2min", "limit of each operation; default 5min"},
    {"HOCKET_INIT_TIMEOUT", "seconds, or with unit", "limit of making a communicator; default 30s"},
    {"HOCKET_STALL", "seconds, or with unit", "first stall line; repeated at twice and four times that; default 10s"},
    {"HOCKET_TRANSPORT", "auto, shm, tcp", "auto: shared memory within a host, TCP between hosts"},
    {"HOCKET_ALGO", "ring, or all_reduce:ring,broadcast:binomial", "forced algorithms"},
    {"HOCKET_EXECUTOR", "auto, inline, event", "how plans are run"},
    {"HOCKET_DETERMINISM", "run, strict", "strict: results do not depend on algorithm, chunking or transport"},
    {"HOCKET_ISA", "ref, avx2, ...", "instruction set of the payload kernels; default the best this CPU has"},
    {"HOCKET_SLOT_BYTES", "bytes, 4096 to 4194304", "largest message; default 64 KiB; when TCP is used 512 KiB, 256 KiB if ranks outnumber CPUs"},
    {"HOCKET_SLOTS", "2 to 64", "messages in flight per channel; default 8"},
    {"HOCKET_RANK", "number", "this rank; set by hocket run"},
    {"HOCKET_RANKS", "number", "ranks in the job; set by hocket run"},
    {"HOCKET_JOB", "name", "names the job's meeting place on one host; set by hocket run"},
    {"HOCKET_ADDR", "host name or address", "where rank 0 is met"},
    {"HOCKET_PORT", "port", "where rank 0 is met"},
    {"HOCKET_PORT_RANGE", "first-last", "ports that may be listened on"},
    {"HOCKET_SOCKET_IFNAME", "prefixes or CIDR, ^ excludes, = exact", "network interfaces to use"},
    {"HOCKET_HOST_KEY", "any text", "ranks with equal keys count as one host; hocket run --hosts-of sets it"},
    {"HOCKET_PACE", "1gbit, 100mbit, 125M", "limit of this rank's TCP rate; hocket run --pace sets it"},
    {"HOCKET_SOCKETS", "1 to 4", "TCP connections each way between two ranks for large messages; default 1; more for links that one stream does not fill"},
    {"HOCKET_SOCKBUF", "bytes", "socket buffer sizes; default the kernel's own tuning"},
    {"HOCKET_TRACE", "folder", "each rank writes there what it did and when, for hocket trace; made if it is not there"},
    {"HOCKET_STATS", "0, 1", "1: a table of operations, waits and bytes on standard error when a communicator is destroyed"},
    {"HOCKET_NOW_FD", "descriptor", "where hocket run reads what each rank is doing; set by it"},
    {"HOCKET_NOW_SLOT", "number", "this rank's record there; set by hocket run"},
    {"HOCKET_FAULT", "flip:rank=R,op=N,byte=B", "plants a fault; test builds only"},
    {"HOCKET_WIRE_VERSION", "number", "pretends another wire version; tests only"},
};

const hki_knob *hki_knobs(size_t *n)
{
    *n = HKI_COUNT(knobs);
    return knobs;
}

const char *hki_env(const char *name)
{
    size_t i = 0;
    while (i < HKI_COUNT(knobs) && strcmp(knobs[i].name, name)) i++;
    HKI_ASSERT(i < HKI_COUNT(knobs));
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

typedef struct unit { const char *name; double factor; } unit;

static bool scaled(const char *text, const unit *units, size_t n, double *out)
{
    char *end;
    const double v = strtod(text, &end);
    if (end == text || !(v >= 0) || v > 1e15) return false;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(end, units[i].name)) return *out = v * units[i].factor, true;
    return false;
}

bool hki_parse_time(const char *text, uint64_t *us)
{
    static const unit units[] = {{"", 1e6}, {"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"min", 60e6}, {"h", 3600e6}};
    double v;
    if (!scaled(text, units, HKI_COUNT(units), &v) || v >= 1e18) return false;
    *us = (uint64_t)v;
    return true;
}

bool hki_parse_rate(const char *text, uint64_t *rate)
{
    static const unit units[] = {{"", 1},         {"K", 1e3},         {"M", 1e6},          {"G", 1e9},
                                 {"kbit", 125.0}, {"mbit", 125000.0}, {"gbit", 125000000.0}};
    double v;
    if (!scaled(text, units, HKI_COUNT(units), &v) || v < 1 || v >= 1e18) return false;
    *rate = (uint64_t)v;
    return true;
}
