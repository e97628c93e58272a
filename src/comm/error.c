/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Failures without a usable communicator are the calling thread's, as errno is. */
static _Thread_local char thread_error[HKI_TEXT];
/* What a call that broke nothing complained about: the communicator's own sentence is kept for what broke it. */
static _Thread_local const hk_comm *complaint_of;
static _Thread_local char complaint[HKI_TEXT];

hk_status hki_error(hk_comm *comm, hk_status status, const char *format, ...)
{
    char *text = comm ? complaint : thread_error;
    int n = comm ? snprintf(text, HKI_TEXT, "rank %u: ", comm->shape.rank) : 0;
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, HKI_TEXT - (size_t)n, format, args);
    va_end(args);
    if (comm) complaint_of = comm;
    return status;
}

void hki_error_forget(const hk_comm *comm)
{
    if (complaint_of == comm) complaint_of = NULL;
}

HK_API const char *hk_last_error(const hk_comm *comm)
{
    if (!comm) return thread_error;
    if (comm->broken) return comm->error;
    return complaint_of == comm ? complaint : "";
}

hk_status hki_comm_unusable(const hk_comm *comm)
{
    if (!comm) return hki_error(NULL, HK_INVALID, "comm is NULL: create a communicator first");
    if (comm->magic != HKI_COMM_MAGIC) return hki_error(NULL, HK_INVALID, "comm is not a communicator, or was destroyed");
    return hki_error(NULL, HK_FORKED, "rank %u: this communicator was made before fork(); a child process must make its own", comm->shape.rank);
}
