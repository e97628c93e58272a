/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sub-commands of `hocket` share. A sub-command is one file that defines a tool_command, listed in main.c. Tools use the
 * public headers and libc only. */
#ifndef HOCKET_TOOL_H
#define HOCKET_TOOL_H

#include <hocket/hocket.h>
#include <hocket/plan.h>

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of every sub-command; main.c prints this list. */
enum {
    TOOL_OK = 0,
    TOOL_WRONG_DATA = 1,    /* an operation gave wrong elements */
    TOOL_USAGE = 2,         /* the command line cannot be right */
    TOOL_COMMUNICATOR = 3,  /* ranks could not meet, or an operation failed */
    TOOL_TIME_LIMIT = 124,  /* `hocket run --timeout` */
    TOOL_CANNOT_RUN = 126,  /* `hocket run`: the program may not be executed */
    TOOL_NOT_FOUND = 127,   /* `hocket run`: there is no such program */
    TOOL_SIGNAL = 128,      /* + n: ended by signal n */
};

typedef struct tool_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is "hocket NAME"; returns the exit code */
} tool_command;

extern const tool_command tool_run, tool_perf, tool_plan, tool_trace, tool_info;

/* ---- Arguments: the functions that take a state end the process with TOOL_USAGE when the text is wrong */

/* argp_parse with exit code 2 for a wrong command line. */
void tool_parse(const struct argp *, int argc, char **argv, unsigned flags, void *input);
long tool_number(struct argp_state *, const char *option, const char *text, long low, long high);
/* "64", "4K", "16M", "1G": bytes in powers of 1024. */
size_t tool_size(struct argp_state *, const char *option, const char *text);
/* Index of text in words[0..n). */
size_t tool_word(struct argp_state *, const char *option, const char *text, const char *const *words, size_t n);
/* The word most like text, or NULL if none is close. */
const char *tool_nearest(const char *text, const char *const *words, size_t n);

/* Allocates or ends the process. */
void *tool_alloc(size_t bytes);

uint64_t tool_now_ns(void); /* monotonic */

#endif
