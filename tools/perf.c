/* SPDX-License-Identifier: Apache-2.0
 * hocket perf: its command line, and how its ranks come to be. */
#include "launch.h"
#include "perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPT_ALGO = 256, OPT_TRANSPORT, OPT_DTYPE, OPT_REDOP, OPT_REGISTERED, OPT_IN_PLACE, OPT_EXECUTOR, OPT_JSON, OPT_MATRIX, OPT_JOINED
};

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "start N ranks here; without it perf joins the job around it (hocket run, torchrun, srun, mpirun)", 1},
    {"begin", 'b', "BYTES", 0, "smallest full vector (8); 4K, 16M, 1G are understood", 2},
    {"end", 'e', "BYTES", 0, "largest (4M)", 2},
    {"factor", 'f', "F", 0, "from one size to the next (4)", 2},
    {"dtype", OPT_DTYPE, "TYPE", 0, "i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 (f32)", 3},
    {"redop", OPT_REDOP, "OP", 0, "sum prod min max avg band bor bxor (sum)", 3},
    {"in-place", OPT_IN_PLACE, NULL, 0, "send and receive buffers are the same", 3},
    {"registered", OPT_REGISTERED, NULL, 0, "buffers from hk_mem_alloc instead of malloc", 3},
    {"algo", OPT_ALGO, "NAME", 0, "force an algorithm (`hocket info algos`)", 4},
    {"transport", OPT_TRANSPORT, "auto|shm|tcp", 0, "how ranks talk", 4},
    {"executor", OPT_EXECUTOR, "auto|inline|event", 0, "how plans are run", 4},
    {"matrix", OPT_MATRIX, NULL, 0, "send_recv: every pair of ranks, one after the other", 5},
    {"json", OPT_JSON, "FILE", 0, "write the figures there too", 5},
    {"joined", OPT_JOINED, NULL, OPTION_HIDDEN, NULL, 5},
    {0},
};

static const char *const transports[] = {"auto", "shm", "tcp"}, *const executors[] = {"auto", "inline", "event"},
                  *const redops[] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};

static void take_op(struct argp_state *state, perf_options *o, const char *text)
{
    const char *names[32];
    size_t n = 0;
    for (; n < perf_ops_n; n++) names[n] = perf_ops[n].name;
    names[n++] = "send_recv", names[n++] = "init";
    if (o->name) argp_error(state, "one operation at a time; '%s' is too much", text);
    const size_t i = tool_word(state, "operation", text, names, n);
    o->name = text;
    o->op = i < perf_ops_n ? &perf_ops[i] : NULL;
}

/* The algorithms of an operation are what can be forced. */
static void check_algo(struct argp_state *state, const perf_options *o)
{
    const char *names[64];
    size_t n = 0;
    hk_tool_algo a;
    if (!o->op) argp_error(state, "--algo: %s has none to choose", o->name);
    for (size_t i = 0; hk_tool_algo_at(i, &a); i++)
        if (!strcmp(a.op, o->name) && n < sizeof names / sizeof *names) names[n++] = a.name;
    tool_word(state, "--algo", o->algo, names, n);
}

static void check(struct argp_state *state, const perf_options *o)
{
    const bool bits = o->redop == HK_BAND || o->redop == HK_BOR || o->redop == HK_BXOR;
    const bool is_float = o->dtype >= HK_F16 && o->dtype <= HK_F64, pairs = o->name && !strcmp(o->name, "send_recv");
    if (!o->name) argp_error(state, "which operation? For example: hocket perf all_reduce -n 2");
    if (o->min > o->max) argp_error(state, "-b %zu is above -e %zu", o->min, o->max);
    if (o->matrix && !pairs) argp_error(state, "--matrix is for send_recv");
    if (o->in_place && (!o->op || o->op->never_in_place)) argp_error(state, "--in-place: %s has no such form", o->name);
    if (bits && is_float) argp_error(state, "--redop %s is for integer types: add --dtype i32", redops[o->redop]);
    if (o->algo) check_algo(state, o);
    if (pairs && o->ranks == 1) argp_error(state, "send_recv needs two ranks: -n 2");
}

static error_t take(int key, char *text, struct argp_state *state)
{
    perf_options *o = state->input;
    const char *types[HK_DTYPES];
    for (int t = 0; t < HK_DTYPES; t++) types[t] = hk_dtype_name((hk_dtype)t);
    switch (key) {
    case 'n': o->ranks = (int)tool_number(state, "-n", text, 1, 4096); break;
    case 'b': o->min = tool_size(state, "-b", text); break;
    case 'e': o->max = tool_size(state, "-e", text); break;
    case 'f': o->factor = (size_t)tool_number(state, "-f", text, 2, 1 << 20); break;
    case OPT_DTYPE: o->dtype = (hk_dtype)tool_word(state, "--dtype", text, types, HK_DTYPES); break;
    case OPT_REDOP: o->redop = tool_word(state, "--redop", text, redops, HK_REDOPS); break;
    case OPT_IN_PLACE: o->in_place = true; break;
    case OPT_REGISTERED: o->registered = true; break;
    case OPT_ALGO: o->algo = text; break;
    case OPT_TRANSPORT: o->transport = transports[tool_word(state, "--transport", text, transports, 3)]; break;
    case OPT_EXECUTOR: o->executor = executors[tool_word(state, "--executor", text, executors, 3)]; break;
    case OPT_MATRIX: o->matrix = true; break;
    case OPT_JSON: o->json = text; break;
    case OPT_JOINED: o->joined = true; break;
    case ARGP_KEY_ARG: take_op(state, o, text); break;
    case ARGP_KEY_END:
        if (o->min == 0) o->min = 1;
        check(state, o);
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char doc[] =
    "Times a collective operation, or send_recv (ping-pong between neighbours), or init (making communicators), and verifies every "
    "element."
    "\vOperations: all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all barrier send_recv init. Sizes are "
    "those of the full vector; where it is split each rank has bytes / ranks. Exit code 1 if any element was wrong.\n\n"
    "Examples:\n"
    "  hocket perf all_reduce -n 2 -b 8 -e 64M -f 8\n"
    "  hocket perf all_gather -n 4 --algo ring --transport tcp --json out.json\n"
    "  hocket run -n 4 --hosts-of 2 -- hocket perf all_reduce\n"
    "  hocket perf send_recv -n 4 --matrix -b 64K -e 64K";

/* Runs itself as the ranks of a job; the arguments are the same. */
static int start_ranks(const perf_options *o, int argc, char **argv)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return fprintf(stderr, "hocket perf: /proc/self/exe: %s\n", strerror(errno)), TOOL_COMMUNICATOR;
    self[n] = 0;
    char **args = tool_alloc((size_t)(argc + 3) * sizeof *args);
    args[0] = self, args[1] = (char *)"perf", args[2] = (char *)"--joined";
    memcpy(args + 3, argv + 1, (size_t)(argc - 1) * sizeof *args);
    const int code = launch(&(launch_options){.name = "hocket perf", .ranks = o->ranks, .nodes = 1, .argv = args});
    free(args);
    return code;
}

static bool inside_a_job(void)
{
    static const char *const names[] = {"HOCKET_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return true;
    return false;
}

static void meet(perf_run *r)
{
    char forced[128];
    hk_config config = HK_CONFIG_INIT;
    config.transport = r->o->transport;
    config.executor = r->o->executor;
    if (r->o->algo) {
        snprintf(forced, sizeof forced, "%s:%s", r->o->name, r->o->algo);
        config.algorithm = forced;
    }
    const uint64_t begin = tool_now_ns();
    perf_must(NULL, "making the communicator", hk_comm_create_env(&r->comm, &config));
    r->meet_us = (double)(tool_now_ns() - begin) / 1e3;
    r->rank = hk_comm_rank(r->comm);
    r->ranks = hk_comm_ranks(r->comm);
}

static int run(int argc, char **argv)
{
    static const struct argp argp = {.options = options, .parser = take, .args_doc = "OPERATION", .doc = doc};
    perf_options o = {.min = 8, .max = 4 << 20, .factor = 4, .dtype = HK_F32, .redop = HK_SUM};
    tool_parse(&argp, argc, argv, 0, &o);
    if (o.ranks && !o.joined) return start_ranks(&o, argc, argv);
    if (!inside_a_job()) {
        fprintf(stderr, "hocket perf: no job to join: give -n (`hocket perf %s -n 2`), or start it with `hocket run`\n", o.name);
        return TOOL_USAGE;
    }
    perf_run r = {.o = &o};
    meet(&r);
    if (o.op) perf_collective(&r);
    else if (!strcmp(o.name, "init")) perf_init(&r);
    else if (r.ranks > 1) perf_send_recv(&r);
    else fprintf(stderr, "hocket perf: send_recv needs two ranks\n");
    const int code = o.op || r.ranks > 1 || !strcmp(o.name, "init") ? perf_report_end(&r) : TOOL_USAGE;
    perf_must(NULL, "hk_comm_destroy", hk_comm_destroy(r.comm));
    free(r.results);
    return code;
}

const tool_command tool_perf = {"perf", "time an operation and verify its data", run};
