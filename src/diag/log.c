/* SPDX-License-Identifier: Apache-2.0 */
#include "diag/log.h"

#include "os/os.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int max_level = HKI_LOG_WARN;
static unsigned subsystems = HKI_LOG_INIT | HKI_LOG_BOOTSTRAP | HKI_LOG_ENV;
static int out_fd = STDERR_FILENO;

static const char *const level_names[] = {"", "VERSION", "WARN", "INFO", "TRACE"};

static unsigned parse_subsystems(const char *list)
{
    static const char *const names[] = {"INIT", "COLL", "P2P", "SHM", "NET", "TUNING", "ENV", "BOOTSTRAP"};
    const bool inverted = *list == '^';
    char copy[256], *save = NULL;
    snprintf(copy, sizeof copy, "%s", list + inverted);
    unsigned set = 0;
    for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
        if (!strcmp(t, "ALL")) set = HKI_LOG_ALL;
        for (unsigned i = 0; i < HKI_COUNT(names); i++)
            if (!strcmp(t, names[i])) set |= 1u << i;
    }
    return inverted ? HKI_LOG_ALL & ~set : set;
}

static void open_file(const char *pattern)
{
    char path[512], host[64];
    size_t n = 0;
    hki_hostname(host);
    for (const char *c = pattern; *c && n + 70 < sizeof path; c++) {
        if (c[0] == '%' && c[1] == 'h') n += (size_t)snprintf(path + n, sizeof path - n, "%s", host), c++;
        else if (c[0] == '%' && c[1] == 'p') n += (size_t)snprintf(path + n, sizeof path - n, "%d", (int)getpid()), c++;
        else path[n++] = *c;
    }
    path[n] = 0;
    FILE *f = fopen(path, "ae");
    if (f) out_fd = fileno(f); /* stays open for the life of the process */
}

static void start(void)
{
    const char *level = hki_env("HOCKET_DEBUG"), *subsys = hki_env("HOCKET_DEBUG_SUBSYS"), *file = hki_env("HOCKET_DEBUG_FILE");
    for (int i = HKI_LOG_VERSION; level && i <= HKI_LOG_TRACE; i++)
        if (!strcmp(level, level_names[i])) max_level = i;
    if (subsys) subsystems = parse_subsystems(subsys);
    if (file) open_file(file);
    if (level) hki_log_write(HKI_LOG_VERSION, -1, "hocket %d.%d.%d", HK_VERSION_MAJOR, HK_VERSION_MINOR, HK_VERSION_PATCH);
}

bool hki_log_on(int level, unsigned subsys)
{
    pthread_once(&once, start);
    return level <= max_level && (level <= HKI_LOG_WARN || (subsystems & subsys));
}

void hki_log_write(int level, int rank, const char *format, ...)
{
    char line[1024], host[64], who[16] = "";
    hki_hostname(host);
    if (rank >= 0) snprintf(who, sizeof who, " [%d]", rank);
    int n = snprintf(line, sizeof line, "%s:%d:%ld%s hocket %s ", host, (int)getpid(), (long)syscall(SYS_gettid), who, level_names[level]);
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    line[n++] = '\n';
    if (write(out_fd, line, (size_t)n) < 0) { } /* a log that cannot be written must not stop the job */
}
