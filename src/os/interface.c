/* SPDX-License-Identifier: Apache-2.0
 * What the machine's network interfaces have moved, by the kernel's counters. */
#include "os/os.h"

#include <stdio.h>
#include <string.h>

/* Bytes per second of the link; 0: the driver does not say. */
static uint64_t link_rate(const char *name)
{
    char path[64];
    long mbit = 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%ld", &mbit) != 1 || mbit < 0) mbit = 0;
    fclose(f);
    return (uint64_t)mbit * 125000;
}

size_t hki_interfaces(hki_interface *out, size_t max)
{
    char line[512];
    size_t n = 0;
    FILE *f = fopen("/proc/net/dev", "re");
    while (f && n < max && fgets(line, sizeof line, f)) {
        hki_interface *i = &out[n];
        unsigned long long received, sent;
        if (sscanf(line, " %15[^:]: %llu %*u %*u %*u %*u %*u %*u %*u %llu", i->name, &received, &sent) != 3) continue; /* the heads */
        i->received = received;
        i->sent = sent;
        i->link = link_rate(i->name);
        n++;
    }
    if (f) fclose(f);
    return n;
}
