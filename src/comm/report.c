/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/report.h"

#include <stdio.h>
#include <string.h>

void hki_desc_of(const hki_call *c, int tag, uint64_t extra, uint32_t algorithm, hki_desc *d)
{
    const bool reduces = c->op < HKI_COLLECTIVES && hki_op_reduces(c->op);
    *d = (hki_desc){.op = (uint8_t)c->op,
                    .dtype = (uint8_t)c->dtype,
                    .redop = !reduces ? 0xff : c->redop < HK_REDOPS ? (uint8_t)c->redop : c->red.op == HKI_USER ? 0xfe : 0xfd,
                    .root = (int32_t)c->root,
                    .count = c->count,
                    .tag = tag,
                    .algorithm = algorithm,
                    .extra = extra};
}

uint64_t hki_desc_fingerprint(uint64_t uid, const hki_desc *d) { return hki_hash_bytes(uid, d, sizeof *d); }

void hki_desc_text(const hki_desc *d, uint64_t seq, char *out, size_t cap)
{
    char number[24] = "", redop[16] = "", root[24] = "", tag[24] = "";
    const char *dtype = hk_dtype_name((hk_dtype)d->dtype), *op = hki_op_name((hki_op)d->op);
    if (seq) snprintf(number, sizeof number, " #%llu", (unsigned long long)seq);
    if (d->redop < HK_REDOPS) snprintf(redop, sizeof redop, " %s", hki_redop_name(d->redop));
    else if (d->redop != 0xff) snprintf(redop, sizeof redop, " %s", d->redop == 0xfe ? "user op" : "premul_sum");
    if (d->op == HKI_SEND) snprintf(root, sizeof root, " to rank %d", d->root);
    else if (d->op == HKI_RECV && d->root < 0) snprintf(root, sizeof root, " from any rank");
    else if (d->op == HKI_RECV) snprintf(root, sizeof root, " from rank %d", d->root);
    else if (d->op < HKI_COLLECTIVES && hki_op_rooted((hki_op)d->op)) snprintf(root, sizeof root, " root %d", d->root);
    if (d->tag) snprintf(tag, sizeof tag, " tag %d", d->tag);
    if (d->op == HKI_BARRIER) snprintf(out, cap, "barrier%s%s", number, tag);
    else if (d->op < HKI_COLLECTIVES && hki_op_uneven((hki_op)d->op))
        snprintf(out, cap, "%s%s %s (counts %08x)%s%s", op, number, dtype, (unsigned)d->extra, redop, tag);
    else snprintf(out, cap, "%s%s %s[%llu]%s%s%s", op, number, dtype, (unsigned long long)d->count, redop, root, tag);
}

void hki_rank_text(hki_peer *const *peers, uint32_t ranks, uint32_t rank, char *out, size_t cap)
{
    if (rank >= ranks) snprintf(out, cap, "any rank");
    else snprintf(out, cap, "rank %u (host %.40s, pid %d)", rank, peers[rank]->host, peers[rank]->pid);
}

static void mismatch_text(const hki_cause *c, const char *who, char out[HKI_TEXT])
{
    const bool known = c->their_seq || c->theirs.count || c->theirs.redop, p2p = c->mine.op >= HKI_COLLECTIVES && c->mine.op < HKI_OPS;
    char mine[112] = "something else", theirs[112] = "something else";
    if (c->mine.op < HKI_OPS) hki_desc_text(&c->mine, c->seq, mine, sizeof mine);
    if (known) hki_desc_text(&c->theirs, c->their_seq, theirs, sizeof theirs);
    int k = snprintf(out, HKI_TEXT, "ranks called different operations: rank %u called %s, %s called %s", c->reporter, mine, who, theirs);
    if (known && c->their_seq == c->seq && !memcmp(&c->mine, &c->theirs, offsetof(hki_desc, algorithm)) && c->mine.algorithm != c->theirs.algorithm)
        k += snprintf(out + k, HKI_TEXT - (size_t)k, "; the forced algorithms differ");
    snprintf(out + k, HKI_TEXT - (size_t)k, p2p ? ". A send and its receive must agree in type and count" : ". Make every rank call the same operations in the same order");
}

void hki_notice_text(const hki_notice *n, hki_peer *const *peers, uint32_t ranks, uint32_t me, char out[HKI_TEXT])
{
    hki_cause c;
    char who[160], what[112] = "no operation", reporter[32];
    memcpy(&c, n->body, sizeof c);
    hki_rank_text(peers, ranks, n->culprit, who, sizeof who);
    if (c.seq) hki_desc_text(&c.mine, c.seq, what, sizeof what);
    snprintf(reporter, sizeof reporter, "rank %u", c.reporter);
    switch (n->status) {
    case HK_TIMEOUT:
        snprintf(out, HKI_TEXT, "time limit passed: %s: %s has waited %.1f s for %s, %u of %u steps done", reporter, what, c.waited_ms / 1e3, who, c.step,
                 c.steps);
        break;
    case HK_MISMATCH: mismatch_text(&c, who, out); break;
    case HK_PEER_LOST: snprintf(out, HKI_TEXT, "%s died or its link broke; noticed by %s in %s", who, reporter, what); break;
    case HK_PEER_LEFT:
        snprintf(out, HKI_TEXT, "%s has left (destroyed its communicator); %s still needs it in %s", who, reporter, what);
        break;
    case HK_ABORTED: snprintf(out, HKI_TEXT, "aborted by %s", who); break;
    case HK_CORRUPT: snprintf(out, HKI_TEXT, "%s sent bytes that cannot be right; noticed by %s", who, reporter); break;
    default: snprintf(out, HKI_TEXT, "%s: %s", hk_status_name((hk_status)n->status), who); break;
    }
}
