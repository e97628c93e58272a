/* SPDX-License-Identifier: Apache-2.0
 * The log: one line an event, `host:pid:tid [rank] hocket LEVEL text`, chosen by HOCKET_DEBUG and HOCKET_DEBUG_SUBSYS. The first
 * function that decides something is wrong writes the one WARN line; those above it forward silently. */
#ifndef HKI_LOG_H
#define HKI_LOG_H

#include "base/base.h"

enum { HKI_LOG_VERSION = 1, HKI_LOG_WARN, HKI_LOG_INFO, HKI_LOG_TRACE };
enum { HKI_LOG_INIT = 1, HKI_LOG_COLL = 2, HKI_LOG_P2P = 4, HKI_LOG_SHM = 8, HKI_LOG_NET = 16, HKI_LOG_TUNING = 32, HKI_LOG_ENV = 64,
       HKI_LOG_BOOTSTRAP = 128, HKI_LOG_ALL = 255 };

bool hki_log_on(int level, unsigned subsys);
/* rank < 0: none yet. */
void hki_log_write(int level, int rank, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define HKI_LOG(level, subsys, rank, ...) \
    (hki_log_on(HKI_LOG_##level, HKI_LOG_##subsys) ? hki_log_write(HKI_LOG_##level, (int)(rank), __VA_ARGS__) : (void)0)

#endif
