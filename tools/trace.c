/* SPDX-License-Identifier: Apache-2.0
 * hocket trace: what ranks did when, from the files that HOCKET_TRACE left. */
#include "trace.h"

#include <errno.h>
#include <string.h>

enum { OPT_LINK = 256, OPT_JOB, OPT_PARTIAL };

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "write the picture there as JSON: open it in ui.perfetto.dev or chrome://tracing", 1},
    {"link", OPT_LINK, "RATE", 0, "rate of each rank's link (10gbit, or bytes a second): bandwidth is also given in percent of it", 1},
    {"job", OPT_JOB, "K", 0, "which job, if the folder has files of several", 1},
    {"partial", OPT_PARTIAL, NULL, 0, "of files whose end is missing or damaged take what comes before", 1},
    {0},
};

static error_t take(int key, char *text, struct argp_state *state)
{
    trace_options *o = state->input;
    switch (key) {
    case 'o': o->json = text; break;
    case OPT_LINK:
        if (!hk_tool_rate(text, &o->link)) argp_error(state, "--link %s: a rate such as 10gbit, 100mbit or 125M is needed", text);
        break;
    case OPT_JOB: o->job = tool_number(state, "--job", text, 1, 1000000); break;
    case OPT_PARTIAL: o->partial = true; break;
    case ARGP_KEY_ARG:
        if (o->folder) argp_error(state, "one folder at a time; '%s' is too much", text);
        o->folder = text;
        break;
    case ARGP_KEY_END:
        if (!o->folder) argp_error(state, "which folder? The one that HOCKET_TRACE named");
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char doc[] =
    "Tells what a run did and where its time went, from the files its ranks left in the folder HOCKET_TRACE named."
    "\vThe report goes to standard output: each rank's share of time in operations and of callers inside hocket, what overlapped, "
    "bandwidth; each operation's duration, split into waiting for the last rank and transfer; who came last how often; sizes; spans. "
    "docs/seeing.md tells what each figure means.\n\n"
    "Example:\n"
    "  HOCKET_TRACE=t hocket run -n 4 -- ./train\n"
    "  hocket trace t -o t.json";

static int run(int argc, char **argv)
{
    static const struct argp argp = {.options = options, .parser = take, .args_doc = "FOLDER", .doc = doc};
    trace_options o = {0};
    trace_job job = {0};
    int code = TOOL_OK;
    tool_parse(&argp, argc, argv, 0, &o);
    trace_load(&job, &o);
    trace_report(&job, &o, stdout);
    if (o.json && !trace_write_json(&job, o.json)) {
        fprintf(stderr, "hocket trace: cannot write '%s': %s\n", o.json, strerror(errno));
        code = TOOL_USAGE;
    }
    trace_free(&job);
    return code;
}

const tool_command tool_trace = {"trace", "what ranks did when, and where the time went", run};
