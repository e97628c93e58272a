/* SPDX-License-Identifier: Apache-2.0
 * hocket run: starts the ranks of a job. */
#include "launch.h"

#include <stdlib.h>
#include <string.h>

enum { OPT_TIMEOUT = 256, OPT_BIND, OPT_TRANSPORT, OPT_HOSTS_OF, OPT_PACE, OPT_PREFIX, OPT_NODE, OPT_NODES, OPT_MASTER };

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "ranks to start on this machine", 1},
    {"timeout", OPT_TIMEOUT, "S", 0, "end the job after that time (seconds, or 300ms, 5min) with exit code 124", 1},
    {"prefix", OPT_PREFIX, NULL, 0, "write \"[rank] \" before each line of output", 1},
    {"verbose", 'v', NULL, 0, "say what is set for the ranks", 1},
    {"bind", OPT_BIND, "none|core", 0,
     "core (default): each rank on its own share of the allowed CPUs, rank r on CPU r mod C if there are too few", 2},
    {"transport", OPT_TRANSPORT, "auto|shm|tcp", 0, "how ranks talk", 2},
    {"hosts-of", OPT_HOSTS_OF, "K", 0, "pretend that every K ranks are a host: TCP between, shared memory inside", 2},
    {"pace", OPT_PACE, "RATE", 0, "limit each rank's TCP rate: 1gbit, 100mbit, or bytes a second", 2},
    {"nodes", OPT_NODES, "M", 0, "machines of the job; run the same command on each, with its own --node", 3},
    {"node", OPT_NODE, "K", 0, "this machine's number, from 0", 3},
    {"master", OPT_MASTER, "ADDR:PORT", 0, "an address of machine 0 and a free port there", 3},
    {0},
};

static void take_master(struct argp_state *state, launch_options *o, const char *text)
{
    static char room[512];
    snprintf(room, sizeof room, "%s", text);
    char *copy = room, *colon = strrchr(copy, ':');
    if (!colon || colon == copy || !colon[1]) argp_error(state, "--master %s: ADDR:PORT is needed, such as 10.0.0.1:29500", text);
    tool_number(state, "--master: port", colon + 1, 1, 65535);
    *colon = 0;
    if (*copy == '[' && colon[-1] == ']') copy++, colon[-1] = 0;
    o->addr = copy;
    o->port = colon + 1;
}

static void check(struct argp_state *state, const launch_options *o, bool node_given)
{
    if (!o->ranks) argp_error(state, "how many ranks? Give -n, such as -n 4");
    if (!o->argv || !o->argv[0]) argp_error(state, "no program to run: it follows `--`");
    if (o->nodes > 1 && (!o->addr || !node_given)) argp_error(state, "--nodes %d needs --node and --master", o->nodes);
    if (o->nodes == 1 && (o->addr || node_given)) argp_error(state, "--node and --master are for several machines: give --nodes");
    if (o->node >= o->nodes) argp_error(state, "--node %d is not below --nodes %d: machines count from 0", o->node, o->nodes);
}

static error_t take(int key, char *text, struct argp_state *state)
{
    static const char *const transports[] = {"auto", "shm", "tcp"}, *const binds[] = {"core", "none"};
    static bool node_given;
    launch_options *o = state->input;
    uint64_t rate;
    switch (key) {
    case 'n': o->ranks = (int)tool_number(state, "-n", text, 1, 4096); break;
    case 'v': o->verbose = true; break;
    case OPT_PREFIX: o->prefix = true; break;
    case OPT_TIMEOUT:
        if (hk_tool_time(text, &o->timeout_us) && o->timeout_us) break;
        argp_error(state, "--timeout %s: a time such as 30, 300ms or 5min is needed", text);
        break;
    case OPT_BIND: o->unbound = tool_word(state, "--bind", text, binds, 2) == 1; break;
    case OPT_TRANSPORT: o->transport = transports[tool_word(state, "--transport", text, transports, 3)]; break;
    case OPT_HOSTS_OF: o->hosts_of = (int)tool_number(state, "--hosts-of", text, 1, 4096); break;
    case OPT_PACE:
        if (!hk_tool_rate(text, &rate)) argp_error(state, "--pace %s: a rate such as 1gbit, 100mbit or 125M is needed", text);
        o->pace = text;
        break;
    case OPT_NODE: o->node = (int)tool_number(state, "--node", text, 0, 65535), node_given = true; break;
    case OPT_NODES: o->nodes = (int)tool_number(state, "--nodes", text, 1, 65536); break;
    case OPT_MASTER: take_master(state, o, text); break;
    case ARGP_KEY_ARG: /* the program; the rest is its own */
        o->argv = state->argv + state->next - 1;
        state->next = state->argc;
        break;
    case ARGP_KEY_END: check(state, o, node_given); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char doc[] =
    "Starts N ranks of a program with rank, number of ranks and meeting place in the environment, and stays until all have ended."
    "\vWhen a rank fails the others are ended (SIGTERM, after 5 s SIGKILL) and its exit code is given. INT, TERM and HUP are passed "
    "on; a second one kills. Ctrl-\\ prints what each rank is doing. Ranks, and what they started, never outlive the launcher. The "
    "first rank reads standard input unless that is a terminal.\n\n"
    "Examples:\n"
    "  hocket run -n 4 -- ./train --epochs 3\n"
    "  hocket run -n 4 --hosts-of 2 --pace 1gbit -- ./train\n"
    "  hocket run -n 8 --nodes 2 --node 0 --master 10.0.0.1:29500 -- ./train\n"
    "The second has two pretended hosts and a slow network between; the third runs on two machines, the other says --node 1.";

static int run(int argc, char **argv)
{
    static const struct argp argp = {.options = options, .parser = take, .args_doc = "-- PROGRAM [ARGS...]", .doc = doc};
    launch_options o = {.name = "hocket run", .nodes = 1};
    tool_parse(&argp, argc, argv, ARGP_IN_ORDER, &o);
    return launch(&o);
}

const tool_command tool_run = {"run", "start the ranks of a job", run};
