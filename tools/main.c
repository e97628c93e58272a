/* SPDX-License-Identifier: Apache-2.0
 * The `hocket` command: finds the sub-command, or lists them by question. */
#include "tool.h"

#include <stdio.h>
#include <string.h>

static const tool_command *const commands[] = {&tool_run, &tool_perf, &tool_plan, &tool_trace, &tool_info};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void list(FILE *to)
{
    fputs("hocket: collective communication. Start with what you want to know:\n\n"
          "How do I start a job?\n"
          "  hocket run -n 4 -- PROGRAM ARGS        ranks on this machine, environment set, one fails = all end\n"
          "Is it fast? Is it right?\n"
          "  hocket perf all_reduce -n 2            times an operation over sizes and verifies every element\n"
          "Why this algorithm?\n"
          "  hocket info algos                      what there is; the last column of perf names the one taken\n"
          "  hocket perf OP -n 4 --algo NAME        times another\n"
          "  hocket plan OP ALGO --ranks 4          what it does, step by step; --check proves it, --cost counts\n"
          "  hocket plan OP --compare --ranks 8,64  all algorithms: rounds, bytes, model time\n"
          "Where did the time go?\n"
          "  HOCKET_STATS=1                         a table a rank at the end: operations, waits, bytes\n"
          "  HOCKET_TRACE=DIR, hocket trace DIR     who waited for whom, what overlapped, a picture for Perfetto\n"
          "Why does it hang?\n"
          "  Ctrl-\\ at hocket run                   what each rank is doing, laggard first; the job goes on\n"
          "  hocket info errors                     each status: meaning, cause, remedy\n"
          "  HOCKET_DEBUG=INFO                      how ranks met and what they use\n"
          "What is this machine?\n"
          "  hocket info                            CPUs, kernels, transports, settings in force\n\n"
          "`hocket COMMAND --help` explains a command and gives an example.\n\n"
          "Exit codes of all commands:\n"
          "  0 success · 1 wrong data · 2 wrong command line · 3 a communicator failed or could not be made\n"
          "  124 time limit of hocket run · 126, 127 program cannot be run, not found · 128+n ended by signal n\n"
          "  hocket run otherwise gives the exit code of the first rank that failed\n",
          to);
}

static int unknown(const char *word)
{
    const char *names[COMMANDS];
    for (unsigned i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *near = tool_nearest(word, names, COMMANDS);
    fprintf(stderr, "hocket: no command '%s'", word);
    if (near) fprintf(stderr, "; did you mean 'hocket %s'?", near);
    fputs(near ? "\n" : "; `hocket` alone lists them\n", stderr);
    return TOOL_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        list(stdout);
        return TOOL_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("hocket %d.%d.%d\n", HK_VERSION_MAJOR, HK_VERSION_MINOR, HK_VERSION_PATCH);
        return TOOL_OK;
    }
    for (unsigned i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i]->name)) continue;
        char name[64];
        snprintf(name, sizeof name, "hocket %s", commands[i]->name);
        argv[1] = name;
        return commands[i]->run(argc - 1, argv + 1);
    }
    return unknown(argv[1]);
}
