/* SPDX-License-Identifier: Apache-2.0
 * One table of statuses: names, meanings, and the cause and remedy that `hocket info errors` prints. */
#include "base/status.h"

static const hki_status_info table[] = {
    {HK_OK, "HK_OK", "success", "", ""},
    {HK_INVALID, "HK_INVALID", "invalid argument", "a pointer, count, rank, type or handle that cannot be right",
     "read hk_last_error: it names the argument; nothing was sent, so the call may be repeated"},
    {HK_UNSUPPORTED, "HK_UNSUPPORTED", "not supported", "the forced algorithm, type or option cannot do this call",
     "drop the forced choice or take the one the message names"},
    {HK_NO_MEMORY, "HK_NO_MEMORY", "out of memory", "an allocation failed", "lower memory use or raise `ulimit -v`"},
    {HK_WAIT_EXPIRED, "HK_WAIT_EXPIRED", "the wait's own limit passed", "hk_wait_for gave up; the request goes on", "wait again"},
    {HK_FORKED, "HK_FORKED", "used after fork", "a communicator of the parent was used in a child process",
     "create communicators after fork, or exec"},
    {HK_SYSTEM, "HK_SYSTEM", "system call failed", "the kernel refused something; the message says what",
     "usually a limit: see `ulimit -a` and the message"},
    {HK_BOOT, "HK_BOOT", "ranks could not meet", "a rank did not come, the address is wrong, or another job answered",
     "check the address, the port and that all ranks started; HOCKET_DEBUG=INFO shows each step"},
    {HK_TIMEOUT, "HK_TIMEOUT", "time limit passed", "a rank is late, stuck or never made the call",
     "look at the rank the message names; HOCKET_TIMEOUT or options set the limit"},
    {HK_MISMATCH, "HK_MISMATCH", "ranks called different operations",
     "operation, type, count, reduction, root or order differ between ranks", "make all ranks call the same; the message shows both calls"},
    {HK_PEER_LOST, "HK_PEER_LOST", "a rank died", "its process ended or its link broke", "look at that rank's output and exit code"},
    {HK_PEER_LEFT, "HK_PEER_LEFT", "a rank has left", "a rank destroyed its communicator while others still need it",
     "make all ranks call the same number of operations"},
    {HK_ABORTED, "HK_ABORTED", "aborted", "hk_comm_abort was called on some rank", "destroy the communicator"},
    {HK_CORRUPT, "HK_CORRUPT", "corrupt data from a peer", "a header or descriptor that cannot be right arrived",
     "check that all ranks run the same version; suspect memory or network hardware"},
};

const hki_status_info *hki_status_table(size_t *n)
{
    *n = HKI_COUNT(table);
    return table;
}

static const hki_status_info *find(hk_status s)
{
    for (size_t i = 0; i < HKI_COUNT(table); i++)
        if (table[i].status == s) return &table[i];
    return NULL;
}

HK_API const char *hk_status_name(hk_status s)
{
    const hki_status_info *i = find(s);
    return i ? i->name : "HK_?";
}

HK_API const char *hk_status_string(hk_status s)
{
    const hki_status_info *i = find(s);
    return i ? i->meaning : "unknown status";
}

HK_API int hk_breaks(hk_status s) { return s <= HK_TIMEOUT; }
HK_API int hk_version(void) { return HK_VERSION; }
