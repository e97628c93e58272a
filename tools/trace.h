/* SPDX-License-Identifier: Apache-2.0
 *
 * hocket trace: a folder of trace files as one picture. Files are of one rank of one communicator; the *owner* of a file is the process
 * or thread that is that rank, so several files may have one owner. Owners that share communicators, and those they share with, are a
 * job. Owners of one machine share a clock; between clocks offsets are estimated (trace_align.c).
 *
 * Times are nanoseconds since the first event of the job, on one clock for all. */
#ifndef HOCKET_TRACE_TOOL_H
#define HOCKET_TRACE_TOOL_H

#include "tool.h"

#include <stdio.h>

typedef struct trace_options {
    const char *folder, *json; /* json NULL: none */
    uint64_t link;             /* bytes a second, 0: not given */
    long job;                  /* 0: there must be one only */
    bool partial;
} trace_options;

typedef struct trace_owner {
    uint64_t key, clock;
    uint32_t rank, ranks; /* in its largest communicator */
    int32_t pid;
    char host[48];
    uint32_t job;
    uint64_t from, to;
} trace_owner;

typedef struct trace_file {
    char path[512];
    hk_tool_trace head;
    hk_tool_event *events;
    uint32_t owner; /* index */
} trace_file;

/* One rank's part in a collective, with those of the others beside it in `uses`, sorted. */
typedef struct trace_use {
    uint32_t file;
    const hk_tool_event *event;
} trace_use;

typedef struct trace_clock {
    uint64_t key;
    int64_t shift;
    uint64_t doubt;
    bool tied;
} trace_clock;

typedef struct trace_job {
    trace_file *files;
    size_t nfiles, nowners, nuses, nclocks;
    trace_owner *owners; /* by rank */
    trace_use *uses;     /* by communicator, sequence, rank: good ones only */
    trace_clock *clocks; /* the first one is the reference */
    uint64_t dropped;
    size_t partial; /* files without an end */
} trace_job;

/* Those uses from `at` that are of one operation; 0 at the end. */
size_t trace_instance(const trace_job *, size_t at);
/* When the last rank of an instance entered, and which of its uses that is. */
size_t trace_last(const trace_job *, size_t at, size_t n);
/* How much of a use's time it waited for that; the rest is transfer. */
uint64_t trace_late(const trace_use *, uint64_t last_entry);
const char *trace_op_name(uint32_t op);

/* Reads, validates, joins and aligns; ends the process with an error if it cannot be. */
void trace_load(trace_job *, const trace_options *);
void trace_align(trace_job *);
void trace_free(trace_job *);
void trace_report(const trace_job *, const trace_options *, FILE *to);
/* Chrome's trace_event form, for ui.perfetto.dev and others; false: errno. */
bool trace_write_json(const trace_job *, const char *path);

#endif
