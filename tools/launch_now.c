/* SPDX-License-Identifier: Apache-2.0
 * Ctrl-\: what each rank is doing, laggard first, from the records that the ranks write. */
#include "launch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file is sealed so that a rank can tell it from whatever else may carry that number, and can neither shrink nor grow it. */
void launch_now_open(launch_job *j)
{
    const size_t bytes = (size_t)j->o->ranks * sizeof(hk_tool_now);
    j->now_fd = memfd_create("hocket-now", MFD_ALLOW_SEALING); /* inherited by the ranks */
    if (j->now_fd < 0) return;
    if (ftruncate(j->now_fd, (off_t)bytes) || fcntl(j->now_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        close(j->now_fd);
        return;
    }
    const void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, j->now_fd, 0);
    if (p != MAP_FAILED) j->now = p;
    else close(j->now_fd);
}

typedef struct row { int rank; const launch_rank *process; hk_tool_now now; } row;

/* Fewest operations entered first, then fewest finished, then the one still in its own code, then the earliest step. */
static int laggard(const void *a, const void *b)
{
    const row *x = a, *y = b;
    if (x->process->ended != y->process->ended) return x->process->ended ? -1 : 1;
    if (x->now.seq != y->now.seq) return x->now.seq < y->now.seq ? -1 : 1;
    if (x->now.finished != y->now.finished) return x->now.finished < y->now.finished ? -1 : 1;
    if ((x->now.state == HK_NOW_OUTSIDE) != (y->now.state == HK_NOW_OUTSIDE)) return x->now.state == HK_NOW_OUTSIDE ? -1 : 1;
    if (x->now.step != y->now.step) return x->now.step < y->now.step ? -1 : 1;
    return x->rank - y->rank;
}

static void print_row(const row *r, uint64_t now_us, FILE *to)
{
    static const char *const states[] = {"in its own code", "running", "waiting"};
    const hk_tool_now *n = &r->now;
    hk_tool_op op = {.name = "?"};
    char what[48] = "-", step[32] = "-", whom[16] = "-";
    fprintf(to, "  %4d %8d  ", r->rank, (int)r->process->pid);
    if (r->process->ended) {
        fprintf(to, "ended with exit code %d\n", r->process->code);
        return;
    }
    if (n->seq == 0) {
        fputs("no operation yet\n", to);
        return;
    }
    hk_tool_op_at(n->op, &op);
    snprintf(what, sizeof what, "%s #%llu %s[%llu]", op.name, (unsigned long long)n->seq, hk_dtype_name((hk_dtype)n->dtype),
             (unsigned long long)n->count);
    if (n->state != HK_NOW_OUTSIDE) snprintf(step, sizeof step, "%u of %u", n->step, n->steps);
    if (n->state == HK_NOW_WAITING && n->waiting_for != HK_NOW_NOBODY) snprintf(whom, sizeof whom, "rank %u", n->waiting_for);
    fprintf(to, "%-15s  %-36s  %-10s  %-9s  %8.1f s\n", states[n->state < 3 ? n->state : 0], what, step, whom,
            now_us > n->since_us ? (double)(now_us - n->since_us) / 1e6 : 0.0);
}

void launch_now_print(const launch_job *j, FILE *to)
{
    const int n = j->o->ranks;
    row *rows = tool_alloc((size_t)n * sizeof *rows);
    for (int i = 0; i < n; i++) {
        rows[i] = (row){.rank = j->first_rank + i, .process = &j->ranks[i]};
        if (j->now) memcpy(&rows[i].now, (const void *)&j->now[i], sizeof rows[i].now);
    }
    qsort(rows, (size_t)n, sizeof *rows, laggard);
    fprintf(to, "%s: %d ranks, laggard first\n", j->o->name, n);
    fprintf(to, "  %4s %8s  %-15s  %-36s  %-10s  %-9s  %10s\n", "rank", "pid", "state", "operation (the last one)", "step", "waits for", "for");
    for (int i = 0; i < n; i++) print_row(&rows[i], tool_now_ns() / 1000, to);
    fflush(to);
    free(rows);
}
