/* SPDX-License-Identifier: Apache-2.0 */
#include "algo/phases.h"

/* ---- Folds ---- */

void hki_fold_by_rank(hki_plan *p, const hki_call *c, uint32_t peer, hki_slice dst, hki_slice local)
{
    if (peer < c->rank) hki_plan_recv_reduce(p, peer, dst, local);
    else hki_plan_reduce_recv(p, peer, dst, local);
}

static void fold_team(hki_plan *p, hki_team t, hki_slice dst, hki_slice own)
{
    hki_slice src[t.n];
    for (uint32_t i = 0; i < t.n; i++) src[i] = i == t.me ? own : hki_from(hki_member(t, i));
    hki_plan_reduce(p, dst, src, t.n);
}

void hki_fold_all(hki_plan *p, const hki_call *c, hki_slice dst, hki_slice own) { fold_team(p, hki_everyone(c), dst, own); }

void hki_fold_at_owners(hki_plan *p, const hki_call *c, hki_team t, hki_share in, hki_slice dst)
{
    const uint32_t slots = c->slots < 2 ? 2 : c->slots;

    /* With room for all messages each rank starts with another owner, and folds last. With less, a fold needing n messages at once, owners
     * would wait for each other in a circle; so there ranks keep the order of owners, and fold once the slots after that of their turn are
     * filled: owner j then waits for nothing but owners below j. */
    const bool room = t.n <= slots; /* one more: the fold may be told in the same breath */
    const uint32_t first = room ? (t.me + 1) % t.n : 0, turn = room ? t.n : t.me + slots;
    for (uint32_t k = 0; k < t.n; k++) {
        const uint32_t j = (first + k) % t.n;
        if (j != t.me) hki_plan_send(p, hki_member(t, j), hki_share_of(in, j));
        if (!room && k + 1 == (turn < t.n ? turn : t.n)) fold_team(p, t, dst, hki_share_of(in, t.me));
    }
    if (room) fold_team(p, t, dst, hki_share_of(in, t.me));
}

/* ---- Direct ---- */

void hki_tell_all(hki_plan *p, hki_team t, hki_share out)
{
    uint32_t others[t.n];
    if (t.n < 2) return;
    for (uint32_t k = 1; k < t.n; k++) others[k - 1] = hki_member(t, t.me + k);
    hki_plan_multicast(p, others, t.n - 1, hki_share_of(out, t.me));
    for (uint32_t k = 1; k < t.n; k++) hki_plan_recv(p, hki_member(t, t.me + t.n - k), hki_share_of(out, (t.me + t.n - k) % t.n));
}

/* ---- Ring ---- */

void hki_ring_reduce_scatter(hki_plan *p, hki_team t, hki_share in, hki_share work, hki_slice result)
{
    const uint32_t n = t.n, me = t.me, next = hki_member(t, me + 1), prev = hki_member(t, me + n - 1);
    hki_slice mine = hki_share_of(in, (me + n - 1) % n);

    /* Before step k `mine` is the fold of k + 1 members' share (me - k - 1), ending with this one; share `me` comes last. */
    for (uint32_t k = 0; k + 1 < n; k++) {
        const uint32_t theirs = (me + 2 * n - k - 2) % n;
        const hki_slice dst = theirs == me ? result : hki_share_of(work, theirs);
        hki_plan_send(p, next, mine);
        hki_plan_recv_reduce(p, prev, dst, hki_share_of(in, theirs));
        mine = dst;
    }
}

void hki_ring_all_gather(hki_plan *p, hki_team t, hki_share out)
{
    const uint32_t n = t.n, me = t.me, next = hki_member(t, me + 1), prev = hki_member(t, me + n - 1);

    /* Before step k shares me - k .. me are here; pass on the one that came last. */
    for (uint32_t k = 0; k + 1 < n; k++) {
        hki_plan_send(p, next, hki_share_of(out, (me + n - k) % n));
        hki_plan_recv(p, prev, hki_share_of(out, (me + 2 * n - k - 1) % n));
    }
}

/* ---- Two levels ---- */

hki_grid hki_grid_of(const hki_call *c)
{
    uint32_t q = c->per_host;
    if (!q || c->ranks % q)
        for (uint32_t d = q = 1; d * d <= c->ranks; d++)
            if (c->ranks % d == 0) q = d;
    const uint32_t H = c->ranks / q;
    /* An operator that does not commute wants neighbours, whoever shares a host. */
    if (c->dealt && c->red.commutes) return (hki_grid){H, q, c->rank % H, c->rank / H, 1, H};
    return (hki_grid){H, q, c->rank / q, c->rank % q, q, 1};
}

void hki_grid_gather_sums(hki_plan *p, const hki_call *c, hki_grid g, hki_share work)
{
    for (uint32_t h = 0; h < g.hosts; h++)
        hki_fold_at_owners(p, c, hki_housemates(g), hki_of_host(g, HKI_IN, h), hki_share_of(work, h));
}

hki_share hki_grid_room(hki_plan *p, const hki_call *c, hki_grid g)
{
    if (g.hosts == 1) return (hki_share){HKI_OUT, 0, 0};
    const hki_slice first = hki_plan_temp(p, hki_in_part(c, c->ranks, 0));
    for (uint32_t h = 1; h < g.hosts; h++) hki_plan_temp(p, hki_in_part(c, c->ranks, h));
    return (hki_share){HKI_TEMP, first.first, 1};
}

void hki_grid_spread(hki_plan *p, hki_grid g)
{
    /* This host's own block is the first to be there. */
    for (uint32_t k = 0; k < g.hosts; k++)
        hki_tell_all(p, hki_housemates(g), hki_of_host(g, HKI_OUT, (g.host + g.hosts - k) % g.hosts));
}

/* ---- Circulant graph ---- */

/* Blocks i .. i + n - 1 of a slice that may wrap. */
static hki_slice turn(const hki_plan *p, hki_slice s, uint32_t i, uint32_t n)
{
    const uint32_t blocks = p->blocks[s.buf].n; /* none when the plan has failed already */
    return hki_blocks_of(s.buf, blocks ? (s.first + i) % blocks : 0, n);
}

/* P halved j times, rounding up. */
static uint32_t skip(uint32_t P, uint32_t j) { return ((P - 1) >> j) + 1; }

void hki_circulant_reduce_scatter(hki_plan *p, const hki_call *c, hki_slice work, hki_slice result)
{
    const uint32_t P = c->ranks, me = c->rank;

    /* Let R[i] be this rank's partial result of part me + i. Before round j only R[0 .. all) matter, and the R[0]'s to come need
     * nothing else: the upper ones are handed to the rank `half` further, for which they are R[0 .. all - half). */
    for (uint32_t j = 0; skip(P, j) > 1; j++) {
        const uint32_t all = skip(P, j), half = skip(P, j + 1), n = all - half;
        const hki_slice low = j ? turn(p, work, 0, n) : hki_in_parts(c, me, n);
        const hki_slice high = j ? turn(p, work, half, n) : hki_in_parts(c, me + half, n);
        hki_plan_send(p, (me + half) % P, high);
        if (j == 0 && half > n) hki_plan_copy(p, turn(p, work, n, 1), hki_in_parts(c, me + n, 1)); /* odd: waits for its turn */
        hki_plan_reduce_recv(p, (me + P - half) % P, half == 1 ? result : turn(p, work, 0, n), low);
    }
}

void hki_circulant_all_gather(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    /* The same skips backwards: before round j parts me .. me + half - 1 are here, after it `all` of them. */
    for (uint32_t j = hki_log2_ceil(P); j-- > 0;) {
        const uint32_t all = skip(P, j), half = skip(P, j + 1), n = all - half;
        hki_plan_send(p, (me + P - half) % P, hki_out_parts(c, me, n));
        hki_plan_recv(p, (me + half) % P, hki_out_parts(c, me + half, n));
    }
}

uint32_t hki_circulant_rounds(uint32_t P)
{
    /* Round j of the all-gather sends blocks [0, n); it depends on the latest earlier round that received one of them. */
    uint32_t depth[32] = {0}, most = 0;
    const uint32_t L = hki_log2_ceil(P);
    for (uint32_t j = L; j-- > 0;) {
        const uint32_t n = skip(P, j) - skip(P, j + 1);
        for (uint32_t i = j + 1; i < L; i++)
            if (skip(P, i + 1) < n) depth[j] = (uint32_t)hki_max(depth[j], depth[i]);
        most = (uint32_t)hki_max(most, ++depth[j]);
    }
    return most;
}

/* ---- Core ---- */

hki_core hki_core_of(uint32_t P)
{
    const uint32_t bits = hki_log2_floor(P);
    return (hki_core){.members = 1u << bits, .bits = bits, .extras = P - (1u << bits)};
}

hki_slice hki_core_enter(hki_plan *p, const hki_call *c, hki_core k, hki_slice work)
{
    if (hki_core_is_extra(k, c->rank)) {
        hki_plan_send(p, c->rank - 1, hki_in(c));
        return hki_blocks_of(work.buf, 0, 0);
    }
    if (c->rank >= 2 * k.extras) return hki_in(c);
    hki_plan_reduce_recv(p, c->rank + 1, work, hki_in(c));
    return work;
}

void hki_core_leave(hki_plan *p, const hki_call *c, hki_core k, hki_slice result)
{
    if (c->rank >= 2 * k.extras) return;
    if (hki_core_is_extra(k, c->rank)) hki_plan_recv(p, c->rank - 1, result);
    else hki_plan_send(p, c->rank + 1, result);
}

hki_range hki_core_range(hki_core k, uint32_t v, uint32_t steps)
{
    uint32_t lo = 0, n = k.members;
    for (uint32_t i = 0; i < steps; i++) {
        n /= 2;
        lo += v >> i & 1 ? n : 0;
    }
    return (hki_range){hki_core_rank(k, lo), hki_core_rank(k, lo + n)};
}

void hki_core_halve(hki_plan *p, const hki_call *c, hki_core k, hki_slice work)
{
    hki_slice mine = hki_core_enter(p, c, k, work);
    const uint32_t v = hki_core_member(k, c->rank);

    /* After step i the members that agree with v above bit i share the folds of their ranks' inputs, each keeping its own range.
     * Neighbours first: the ranks folded so far are always a contiguous range. */
    for (uint32_t i = 0; mine.n && i < k.bits; i++) {
        const uint32_t other = v ^ 1u << i, peer = hki_core_rank(k, other);
        const hki_range keep = hki_core_range(k, v, i + 1), give = hki_core_range(k, other, i + 1);
        hki_plan_send(p, peer, hki_sub(mine, give.lo, give.hi - give.lo));
        hki_fold_by_rank(p, c, peer, hki_sub(work, keep.lo, keep.hi - keep.lo), hki_sub(mine, keep.lo, keep.hi - keep.lo));
        mine = work;
    }
}

/* ---- Binomial tree ---- */

uint32_t hki_binomial_children(uint32_t P, uint32_t v, uint32_t child[32])
{
    uint32_t n = 0;
    for (uint32_t bit = 1; bit < P - v && !(v & bit); bit *= 2) child[n++] = v + bit;
    return n;
}
