/* SPDX-License-Identifier: Apache-2.0
 * hocket plan: prints plans, proves them, tells what they cost and who holds what on the way. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_RANKS = 256, OPT_RANK, OPT_COUNT, OPT_BYTES, OPT_DTYPE, OPT_REDOP, OPT_ROOT, OPT_IN_PLACE, OPT_PER_HOST, OPT_DEALT, OPT_CHECK, OPT_COST, OPT_SHOW,
    OPT_COMPARE, OPT_ALPHA, OPT_BETA, OPT_WINDOW, OPT_DEPTH
};

static const struct argp_option options[] = {
    {"ranks", OPT_RANKS, "N", 0, "ranks (4); a list such as 8,64,512 with --compare", 1},
    {"rank", OPT_RANK, "R", 0, "print the plan of this rank only", 1},
    {"count", OPT_COUNT, "N", 0, "elements, as in the call (250 a block); uneven forms: of every block", 1},
    {"bytes", OPT_BYTES, "B", 0, "instead: bytes of the full vector, 64K, 16M; a list with --compare", 1},
    {"dtype", OPT_DTYPE, "TYPE", 0, "i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 (f32)", 1},
    {"redop", OPT_REDOP, "OP", 0, "sum prod min max avg band bor bxor (sum)", 1},
    {"root", OPT_ROOT, "R", 0, "root of rooted operations (0)", 1},
    {"per-host", OPT_PER_HOST, "N", 0, "ranks a host, neighbours, as two_level takes into account", 1},
    {"dealt", OPT_DEALT, NULL, 0, "with --per-host: not neighbours, ranks go to the hosts in turn", 1},
    {"in-place", OPT_IN_PLACE, NULL, 0, "send and receive buffers are the same", 1},
    {"check", OPT_CHECK, NULL, 0, "prove the plans of all ranks right, or say what is wrong (exit code 1)", 2},
    {"cost", OPT_COST, NULL, 0, "rounds, messages, bytes: formula and measured", 2},
    {"show", OPT_SHOW, "K", 0, "who holds what once each rank has done its first K steps (up to 64 ranks)", 2},
    {"compare", OPT_COMPARE, NULL, 0, "all algorithms of the operation, one line each", 2},
    {"alpha", OPT_ALPHA, "US", 0, "microseconds that a round costs in the model (15)", 3},
    {"beta", OPT_BETA, "GB/S", 0, "rate at which the busiest rank sends in the model (2.9)", 3},
    {"window", OPT_WINDOW, "BYTES", 0, "print how many windows of that width (bytes of a block) the plan is applied to", 3},
    {"depth", OPT_DEPTH, "D", 0, "windows in flight, for --window (2)", 3},
    {0},
};

/* ---- Command line */

static double take_real(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    const double v = strtod(text, &end);
    if (end == text || *end || !(v > 0) || v > 1e9) argp_error(state, "%s %s: a number above 0 is needed", option, text);
    return v;
}

/* A comma-separated list into one of the two arrays; returns how many. */
static size_t take_list(struct argp_state *state, const char *option, const char *text, uint32_t *ranks, size_t *bytes)
{
    char copy[512], *rest = copy, *item;
    size_t n = 0;
    if (strlen(text) >= sizeof copy) argp_error(state, "%s: that list is too long", option);
    snprintf(copy, sizeof copy, "%s", text);
    while ((item = strsep(&rest, ","))) {
        if (n == PLAN_LIST) argp_error(state, "%s %s: %d entries at most", option, text, PLAN_LIST);
        if (ranks) ranks[n++] = (uint32_t)tool_number(state, option, item, 1, 4096);
        else bytes[n++] = tool_size(state, option, item);
    }
    return n;
}

static bool find_op(const char *name, hk_tool_op *op)
{
    for (size_t i = 0; hk_tool_op_at(i, op); i++)
        if (op->collective && !strcmp(op->name, name)) return true;
    return false;
}

static size_t algos_of(const char *op, const char *names[64])
{
    hk_tool_algo a;
    size_t n = 0;
    for (size_t i = 0; n < 64 && hk_tool_algo_at(i, &a); i++)
        if (!strcmp(a.op, op)) names[n++] = a.name;
    return n;
}

/* Ends the process with the list of names if text is none of them. */
static void take_name(struct argp_state *state, plan_options *o, const char *text)
{
    const char *names[64];
    hk_tool_op op;
    size_t n = 0;
    if (!o->op.name) {
        for (size_t i = 0; n < 64 && hk_tool_op_at(i, &op); i++)
            if (op.collective) names[n++] = op.name;
        tool_word(state, "operation", text, names, n);
        find_op(text, &o->op);
        o->call.op = o->op.name;
    } else {
        n = algos_of(o->op.name, names);
        o->call.algorithm = names[tool_word(state, "algorithm", text, names, n)];
    }
}

static void check(struct argp_state *state, plan_options *o, const char *const *words, unsigned n)
{
    const char *names[64];
    const bool looks = o->check || o->cost || o->showing;
    hk_tool_op op;
    if (!n) argp_error(state, "which operation? For example: hocket plan all_reduce ring --ranks 4");
    if (n == 1 && looks && !o->compare && !find_op(words[0], &op)) {
        o->file = words[0];
        return;
    }
    for (unsigned i = 0; i < n; i++) take_name(state, o, words[i]);
    if (o->compare && (n > 1 || looks)) argp_error(state, "--compare is for an operation alone: hocket plan OP --compare");
    if (!o->compare && n == 1) tool_word(state, "algorithm", "is missing", names, algos_of(o->op.name, names));
    if (!o->compare && (o->nranks > 1 || o->nbytes > 1)) argp_error(state, "lists of --ranks and --bytes are for --compare");
    if (o->rank != HK_TOOL_ALL_RANKS && looks) argp_error(state, "--check, --cost and --show look at all ranks: leave out --rank");
    if (o->rank != HK_TOOL_ALL_RANKS && o->rank >= o->ranks[0]) argp_error(state, "no rank %u of %u", o->rank, o->ranks[0]);
    if (o->call.dealt && !o->call.per_host) argp_error(state, "--dealt tells how the ranks of --per-host go to hosts");
    if (o->counted && o->nbytes) argp_error(state, "--count or --bytes, not both");
    if (o->compare && !o->counted && !o->nbytes) o->bytes[o->nbytes++] = 64 << 10, o->bytes[o->nbytes++] = 64 << 20;
}

static error_t take(int key, char *text, struct argp_state *state)
{
    static const char *const redops[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
    static const char *words[2];
    plan_options *o = state->input;
    const char *types[HK_DTYPES];
    for (int t = 0; t < HK_DTYPES; t++) types[t] = hk_dtype_name((hk_dtype)t);
    switch (key) {
    case OPT_RANKS: o->nranks = take_list(state, "--ranks", text, o->ranks, NULL); break;
    case OPT_RANK: o->rank = (uint32_t)tool_number(state, "--rank", text, 0, 4095); break;
    case OPT_COUNT: o->count = tool_size(state, "--count", text), o->counted = true; break;
    case OPT_BYTES: o->nbytes = take_list(state, "--bytes", text, NULL, o->bytes); break;
    case OPT_DTYPE: o->call.dtype = (hk_dtype)tool_word(state, "--dtype", text, types, HK_DTYPES); break;
    case OPT_REDOP: o->call.redop = tool_word(state, "--redop", text, redops, HK_REDOPS); break;
    case OPT_ROOT: o->call.root = (uint32_t)tool_number(state, "--root", text, 0, 4095); break;
    case OPT_PER_HOST: o->call.per_host = (uint32_t)tool_number(state, "--per-host", text, 1, 4096); break;
    case OPT_DEALT: o->call.dealt = 1; break;
    case OPT_IN_PLACE: o->call.in_place = 1; break;
    case OPT_CHECK: o->check = true; break;
    case OPT_COST: o->cost = true; break;
    case OPT_SHOW: o->show = (uint32_t)tool_number(state, "--show", text, 0, 1 << 30), o->showing = true; break;
    case OPT_COMPARE: o->compare = true; break;
    case OPT_ALPHA: o->model.alpha_us = take_real(state, "--alpha", text); break;
    case OPT_BETA: o->model.gbytes_per_s = take_real(state, "--beta", text); break;
    case OPT_WINDOW: o->window = tool_size(state, "--window", text); break;
    case OPT_DEPTH: o->depth = (unsigned)tool_number(state, "--depth", text, 1, 64); break;
    case ARGP_KEY_ARG:
        if (state->arg_num == 2) argp_error(state, "an operation and an algorithm; '%s' is too much", text);
        words[state->arg_num] = text;
        break;
    case ARGP_KEY_END: check(state, o, words, state->arg_num); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- Plans */

static char *read_all(const char *path, size_t *len)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "r") : stdin;
    size_t room = 1 << 16, got;
    char *text = tool_alloc(room);
    *len = 0;
    if (!f) {
        fprintf(stderr, "hocket plan: %s: neither an operation nor a file: %m\n", path);
        exit(TOOL_USAGE);
    }
    while ((got = fread(text + *len, 1, room - *len, f)) > 0) {
        *len += got;
        if (*len < room) continue;
        char *grown = realloc(text, room *= 2);
        if (!grown) fputs("hocket plan: out of memory\n", stderr), exit(TOOL_COMMUNICATOR);
        text = grown;
    }
    if (ferror(f)) {
        fprintf(stderr, "hocket plan: %s: %m\n", path);
        exit(TOOL_USAGE);
    }
    if (f != stdin) fclose(f);
    return text;
}

static hk_tool_plans *plans_of(plan_options *o)
{
    char error[HK_TOOL_TEXT];
    hk_tool_plans *plans;
    if (o->file) {
        size_t len;
        char *text = read_all(o->file, &len);
        plans = hk_tool_plans_read(text, len, error);
        free(text);
    } else {
        const bool look = o->check || o->cost || o->showing;
        plans = hk_tool_plans_build(&o->call, look ? HK_TOOL_ALL_RANKS : o->rank, error);
    }
    if (plans) return plans;
    fprintf(stderr, "hocket plan: %s%s%s\n", o->file ? o->file : "", o->file ? ": " : "", error);
    exit(TOOL_USAGE);
}

static void print(const plan_options *o, const hk_tool_plans *plans, uint32_t ranks)
{
    const size_t width = o->window / hk_dtype_size(o->call.dtype), window = o->window && !width ? 1 : width;
    size_t room = 1 << 16;
    char *text = tool_alloc(room);
    for (uint32_t r = 0; r < ranks; r++) {
        if (o->rank != HK_TOOL_ALL_RANKS && r != o->rank) continue;
        const size_t len = hk_tool_plans_print(plans, r, window, o->depth, text, room);
        if (len >= room) {
            free(text);
            text = tool_alloc(room = 2 * len);
            hk_tool_plans_print(plans, r, window, o->depth, text, room);
        }
        printf("%s%s", r && o->rank == HK_TOOL_ALL_RANKS ? "\n" : "", text);
    }
    free(text);
}

static void print_proven(const hk_tool_call *call, const hk_tool_report *report, uint32_t steps)
{
    hk_tool_property property;
    printf("proven: %s by %s, %u ranks, up to %u steps a rank\n", call->op, call->algorithm, call->ranks, steps);
    for (size_t i = 0; hk_tool_property_at(i, &property); i++)
        if (report->proven >> i & 1) printf("  %-12s %s\n", property.name, property.meaning);
    if (report->slots) printf("in list order it needs %u payload slots a rank\n", report->slots);
    else puts("in list order it gets stuck with any number of slots: for the event-driven executor only");
    if (report->rendezvous) puts("a message may be passed by reference: sends that last until they are read make no circle");
    if (report->rank_order && report->proven) {
        hk_tool_op op;
        for (size_t i = 0; hk_tool_op_at(i, &op); i++)
            if (!strcmp(op.name, call->op) && op.reduces)
                printf("each result is %s in order\n", report->fold_once ? "one fold over all ranks" : "a tree over the ranks");
    }
}

/* ---- Who holds what */

/* {0,2,5-7} */
static const char *set_text(uint64_t set, char text[256])
{
    size_t n = 0;
    if (!set) return "-";
    for (unsigned r = 0; r < 64; r++) {
        unsigned last = r;
        if (!(set >> r & 1)) continue;
        while (last < 63 && set >> (last + 1) & 1) last++;
        n += (size_t)snprintf(text + n, 256 - n, last > r + 1 ? "%s%u-%u" : last > r ? "%s%u,%u" : "%s%u", n ? "," : "{", r, last);
        r = last;
    }
    snprintf(text + n, 256 - n, "}");
    return text;
}

static int show(const plan_options *o, const hk_tool_plans *plans, const hk_tool_call *call, uint32_t steps, uint32_t blocks)
{
    char text[256];
    size_t width = 8;
    if (!blocks) return fprintf(stderr, "hocket plan: --show: %s has no output to look at\n", call->op), TOOL_USAGE;
    if (call->ranks > 64) return fprintf(stderr, "hocket plan: --show is for up to 64 ranks\n"), TOOL_USAGE;
    const size_t cells = (size_t)call->ranks * blocks;
    uint64_t *sets = tool_alloc(cells * sizeof *sets);
    const hk_status status = hk_tool_plans_hold(plans, o->show, sets);
    if (status) {
        const char *why = status == HK_INVALID ? "in list order these plans get stuck" : hk_status_string(status);
        fprintf(stderr, "hocket plan: --show: %s\n", why);
        free(sets);
        return TOOL_WRONG_DATA;
    }
    for (size_t i = 0; i < cells; i++) width = strlen(set_text(sets[i], text)) > width ? strlen(text) : width;
    printf("%s by %s, after step %u of %u: whose input is in each output block of each rank\n%10s", call->op, call->algorithm,
           o->show < steps ? o->show : steps, steps, "");
    for (uint32_t b = 0; b < blocks; b++) {
        char name[32];
        snprintf(name, sizeof name, blocks > 1 ? "out[%u]" : "out", b);
        printf(b + 1 < blocks ? "%-*s  " : "%.*s%s", (int)width, b + 1 < blocks ? name : "", name);
    }
    puts("");
    for (uint32_t r = 0; r < call->ranks; r++) {
        printf("rank %-5u", r);
        for (uint32_t b = 0; b < blocks; b++) {
            const char *set = set_text(sets[(size_t)r * blocks + b], text);
            if (b + 1 < blocks) printf("%-*s  ", (int)width, set);
            else puts(set);
        }
    }
    free(sets);
    return TOOL_OK;
}

/* ---- */

static int look(plan_options *o, hk_tool_plans *plans)
{
    hk_tool_call call;
    hk_tool_report report;
    uint32_t steps, blocks;
    int code = TOOL_OK;
    hk_tool_plans_shape(plans, &call, &steps, &blocks);
    find_op(call.op, &o->op);
    if (o->check || o->cost) {
        hk_tool_plans_check(plans, &report);
        if (report.status) {
            fflush(stdout);
            fprintf(stderr, "hocket plan: not right: %s\n", report.finding);
            return report.status == HK_INVALID ? TOOL_WRONG_DATA : TOOL_COMMUNICATOR;
        }
        if (o->check) print_proven(&call, &report, steps);
        if (o->check && o->cost) puts("");
        if (o->cost) plan_print_cost(o, &call, &report.cost);
    }
    if (o->showing && (o->check || o->cost)) puts("");
    if (o->showing) code = show(o, plans, &call, steps, blocks);
    return code;
}

static const char doc[] =
    "Prints the plan that an algorithm writes for each rank, proves it right, tells what it costs."
    "\vWithout --check, --cost or --show the plans themselves are printed, as text that --check reads again (docs/plan.md). With one "
    "of these a FILE (or - for standard input) may stand in place of OP and ALGO: it holds the plans of all ranks.\n\n"
    "Examples:\n"
    "  hocket plan all_reduce ring --ranks 4 --rank 1\n"
    "  hocket plan all_reduce ring --ranks 4 --check --cost\n"
    "  hocket plan all_reduce ring --ranks 4 --show 3\n"
    "  hocket plan all_reduce ring --ranks 4 > mine.txt; hocket plan mine.txt --check\n"
    "  hocket plan all_reduce --compare --ranks 8,64,512 --bytes 64K,64M";

static int run(int argc, char **argv)
{
    static const struct argp argp = {.options = options, .parser = take, .args_doc = "OP ALGO\nOP --compare\nFILE --check", .doc = doc};
    plan_options o = {.call = {.dtype = HK_F32, .redop = HK_SUM}, .rank = HK_TOOL_ALL_RANKS, .ranks = {4}, .nranks = 1, .depth = 2,
                      .model = {.alpha_us = 15, .gbytes_per_s = 2.9}};
    tool_parse(&argp, argc, argv, 0, &o);
    if (o.compare) return plan_compare(&o), TOOL_OK;
    o.call.ranks = o.ranks[0];
    if (!o.file) {
        const size_t each = 250 * hk_dtype_size(o.call.dtype);
        o.call.count = o.counted ? o.count : plan_count(&o, o.ranks[0], o.nbytes ? o.bytes[0] : each * o.ranks[0]);
    }
    hk_tool_plans *plans = plans_of(&o);
    int code = TOOL_OK;
    if (o.check || o.cost || o.showing) code = look(&o, plans);
    else print(&o, plans, o.call.ranks);
    hk_tool_plans_free(plans);
    return code;
}

const tool_command tool_plan = {"plan", "what an algorithm does on each rank, proof and cost", run};
