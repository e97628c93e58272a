/* SPDX-License-Identifier: Apache-2.0
 * hocket info: what this build can do and what this machine is, from the tables that the library itself uses. */
#include "tool.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void algos(void)
{
    static const char *const folds[] = {"", " [folds once]", " [folds twice]"};
    hk_tool_algo a;
    const char *op = "";
    for (size_t i = 0; hk_tool_algo_at(i, &a); i++) {
        if (strcmp(op, a.op)) printf("%s%s\n", i ? "\n" : "", a.op);
        op = a.op;
        printf("  %-20s %s%s%s\n", a.name, a.summary, a.rank_order ? " [rank order]" : "", folds[a.folds]);
    }
    puts("\n[rank order]  combines neighbouring ranks left to right: right for operators that do not commute\n"
         "[folds once]  each result is one fold over all ranks: rounds once, and does integer averages\n"
         "[folds twice] a fold of folds: rounds twice at most\n"
         "Force one with --algo, HOCKET_ALGO, hk_config.algorithm or hk_options.algorithm.");
}

static void transports(void)
{
    hk_tool_transport t;
    for (size_t i = 0; hk_tool_transport_at(i, &t); i++) printf("  %-6s %s\n", t.name, t.summary);
}

static void kernels(void)
{
    hk_tool_kernel k;
    for (size_t i = 0; hk_tool_kernel_at(i, &k); i++)
        printf("  %-8s %s\n", k.name, k.in_use ? "in use" : k.usable ? "this CPU has it" : "this CPU does not have it");
    puts("HOCKET_ISA chooses another.");
}

static void env(void)
{
    hk_tool_knob k;
    for (size_t i = 0; hk_tool_knob_at(i, &k); i++) {
        printf("%s%s%s\n", k.name, k.value ? "=" : "", k.value ? k.value : "");
        printf("  %s\n  values: %s\n", k.meaning, k.values);
    }
}

static void errors(void)
{
    hk_tool_status s;
    for (size_t i = 0; hk_tool_status_at(i, &s); i++) {
        printf("%-16s %4d  %s\n", s.name, (int)s.status, s.meaning);
        if (*s.cause) printf("  cause:  %s\n", s.cause);
        if (*s.remedy) printf("  remedy: %s\n", s.remedy);
        if (!s.status) continue;
        printf("  after:  the communicator is %s\n", hk_breaks(s.status) ? "unusable: destroy it" : "as good as before");
    }
}

static void machine(void)
{
    char host[256] = "?";
    cpu_set_t set;
    hk_tool_knob k;
    bool any = false;
    gethostname(host, sizeof host - 1);
    printf("hocket      %d.%d.%d\n", HK_VERSION_MAJOR, HK_VERSION_MINOR, HK_VERSION_PATCH);
    printf("host        %s\n", host);
    printf("CPUs        %d usable (affinity and quota)", hk_tool_cpus());
    if (!sched_getaffinity(0, sizeof set, &set)) printf(", %d allowed", CPU_COUNT(&set));
    printf(", %ld online\n", sysconf(_SC_NPROCESSORS_ONLN));
    printf("memory      %.1f GiB\n", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30));
    puts("\nkernels"), kernels();
    puts("\ntransports"), transports();
    puts("\nset in the environment");
    for (size_t i = 0; hk_tool_knob_at(i, &k); i++)
        if (k.value) printf("  %s=%s\n", k.name, k.value), any = true;
    if (!any) puts("  nothing; `hocket info env` lists what can be");
}

static const struct { const char *name; void (*print)(void); } parts[] = {
    {"machine", machine}, {"algos", algos}, {"transports", transports}, {"kernels", kernels}, {"env", env}, {"errors", errors},
};
enum { PARTS = sizeof parts / sizeof *parts };

static error_t take(int key, char *text, struct argp_state *state)
{
    const char *names[PARTS];
    for (unsigned i = 0; i < PARTS; i++) names[i] = parts[i].name;
    if (key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
    if (state->arg_num) argp_error(state, "one part at a time; '%s' is too much", text);
    *(size_t *)state->input = tool_word(state, "part", text, names, PARTS);
    return 0;
}

static const char doc[] = "Shows what this build can do and what this machine is."
                          "\vParts: machine (default), algos, transports, kernels, env (every environment variable), errors (every "
                          "status: meaning, cause, remedy).\n\nExample:\n  hocket info algos";

static int run(int argc, char **argv)
{
    static const struct argp argp = {.parser = take, .args_doc = "[algos|transports|kernels|env|errors]", .doc = doc};
    size_t part = 0;
    tool_parse(&argp, argc, argv, 0, &part);
    parts[part].print();
    return TOOL_OK;
}

const tool_command tool_info = {"info", "what this build can do, what this machine is", run};
