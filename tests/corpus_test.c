/* SPDX-License-Identifier: Apache-2.0
 *
 * Replays fuzz/corpus/<target>/ through the fuzz targets, without a fuzzer: what was found once stays fixed. */
#include <dirent.h>
#include <stdio.h>

#define LLVMFuzzerTestOneInput fuzz_plan_text
#include "../fuzz/plan_text.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_frame
#include "../fuzz/frame.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_trace
#include "../fuzz/trace.c"
#undef LLVMFuzzerTestOneInput

static const struct { const char *name; int (*run)(const uint8_t *, size_t); } targets[] = {
    {"plan_text", fuzz_plan_text},
    {"frame", fuzz_frame},
    {"trace", fuzz_trace},
};

static bool replay(const char *path, int (*target)(const uint8_t *, size_t))
{
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    const size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    printf("%s: %zu bytes\n", path, n); /* the last one named is the one that ended the program */
    fflush(stdout);
    /* Exactly sized, so that a sanitizer sees what reads beyond it. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact) return false;
    memcpy(exact, data, n);
    target(exact, n);
    free(exact);
    return true;
}

int main(void)
{
    unsigned replayed = 0, unreadable = 0;
    for (size_t i = 0; i < HKI_COUNT(targets); i++) {
        char folder[512], path[1024];
        snprintf(folder, sizeof folder, "%s/fuzz/corpus/%s", SOURCE_DIR, targets[i].name);
        DIR *d = opendir(folder);
        targets[i].run(NULL, 0);
        for (struct dirent *e; d && (e = readdir(d));) {
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            if (replay(path, targets[i].run)) replayed++;
            else unreadable++;
        }
        if (d) closedir(d);
        else unreadable++;
    }
    printf("%u inputs replayed, %u unreadable\n", replayed, unreadable);
    return unreadable || !replayed;
}
