/* SPDX-License-Identifier: Apache-2.0
 *
 * Data-parallel training in plain C: a small network learns to read handwritten digits.
 *
 *     hocket run -n 4 -- train_digits --need-accuracy 95
 *
 * Every rank has the whole network and takes its slice of each global batch; hk_all_reduce adds the gradients up, so that all
 * ranks take the same step. The losses do not depend on the number of ranks (but for the order in which floats are added).
 *
 * With --overlap a layer's gradient is on its way while the layers before it are still at work: layers are marked ready in gradient
 * buckets (train.h), which hocket's progress thread moves meanwhile. The numbers are the same. */
#include <hocket/hocket.h>
#include <hocket/train.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIXELS = 64, CLASSES = 10, LAYERS_MAX = 3, ROWS_MAX = 4096 };

typedef struct data { int rows, train; float *x; int *label; } data; /* the last rows - train are held out */

typedef struct net {
    int layers, width[LAYERS_MAX + 1];     /* 64-64-10, or 64-1024-1024-10 */
    size_t params;                         /* of all layers: weights [in][out], then biases */
    float *param, *speed, *grad[LAYERS_MAX]; /* the gradients of all layers: in `whole`, or in the buckets */
    float *whole;
    hk_buckets *buckets;                   /* --overlap */
    float *act[LAYERS_MAX + 1], *delta[LAYERS_MAX + 1]; /* of one slice: [row][unit]; act[0] is the input */
} net;

typedef struct settings {
    int wide, epochs, batch, overlap, micro; /* micro: micro-batches of a step */
    float rate, momentum;
    double need;
    const char *data, *losses;
} settings;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void fail(const hk_comm *comm, const char *what)
{
    fprintf(stderr, "train_digits: %s: %s\n", what, hk_last_error(comm));
    exit(3);
}

static _Noreturn void fail_buckets(const char *what)
{
    fprintf(stderr, "train_digits: %s: %s\n", what, hk_buckets_last_error());
    exit(3);
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) fprintf(stderr, "train_digits: out of memory\n"), exit(3);
    return memset(p, 0, bytes);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* The same on all ranks, since it depends on the seed only. */
static void shuffle(int *order, int n, uint64_t *seed)
{
    for (int i = n - 1; i > 0; i--) {
        const int k = (int)(next_random(seed) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
}

/* ---- Data ------------------------------------------------------------------------------------------------------------------ */

/* The reason it cannot be read, or NULL. */
static const char *read_file(const char *path, data *d)
{
    static char line[1024];
    if (access(path, R_OK)) return strerror(errno);
    setenv("DIGITS", path, 1); /* no quoting to get wrong */
    FILE *f = popen("exec gzip -dc \"$DIGITS\"", "r");
    if (!f) return strerror(errno);
    while (d->rows < ROWS_MAX && fgets(line, sizeof line, f)) {
        char *at = line;
        for (int i = 0; i <= PIXELS; i++, at += *at == ',') {
            char *end;
            const long v = strtol(at, &end, 10);
            if (end == at || v < 0 || v > 16 || (i == PIXELS && v >= CLASSES))
                return pclose(f), "a row is not 64 pixels and a label";
            if (i < PIXELS) d->x[d->rows * PIXELS + i] = (float)v / 16;
            else d->label[d->rows] = (int)v;
            at = end;
        }
        d->rows++;
    }
    if (pclose(f)) return "it is no gzip file, or gzip is not installed";
    return d->rows < 100 ? "too few rows" : NULL;
}

/* Beside the sources if not said otherwise: from the repository root, or from build/bin. */
static void find_file(char *path, size_t room)
{
    char self[3000];
    snprintf(path, room, "examples/data/digits.csv.gz");
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (!access(path, R_OK) || n <= 0) return;
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(path, room, "%s/../../examples/data/digits.csv.gz", self);
}

/* Rows in an order drawn once: in the file's order the last fifth is unlike the rest (nets that read 97 % of a drawn fifth read
 * 92 % of that one). */
static void mix_rows(data *d)
{
    float *x = take(sizeof(float) * ROWS_MAX * PIXELS);
    int *label = take(sizeof(int) * ROWS_MAX), from[ROWS_MAX];
    uint64_t seed = 1;
    for (int i = 0; i < d->rows; i++) from[i] = i;
    shuffle(from, d->rows, &seed);
    for (int i = 0; i < d->rows; i++) {
        memcpy(x + i * PIXELS, d->x + from[i] * PIXELS, sizeof(float) * PIXELS);
        label[i] = d->label[from[i]];
    }
    free(d->x), free(d->label);
    d->x = x, d->label = label;
}

/* Rank 0 reads and tells the others: one message if the file is bad, and all ranks leave together. */
static int load(hk_comm *comm, const char *given, data *d)
{
    char path[4096];
    d->x = take(sizeof(float) * ROWS_MAX * PIXELS);
    d->label = take(sizeof(int) * ROWS_MAX);
    d->rows = 0;
    if (hk_comm_rank(comm) == 0) {
        if (given) snprintf(path, sizeof path, "%s", given);
        else find_file(path, sizeof path);
        const char *reason = read_file(path, d);
        if (!reason) mix_rows(d);
        else fprintf(stderr, "train_digits: cannot read '%s': %s. --data names another file\n", path, reason), d->rows = 0;
    }
    if (hk_broadcast(&d->rows, &d->rows, 1, HK_I32, 0, comm, NULL, NULL) ||
        hk_broadcast(d->x, d->x, (size_t)d->rows * PIXELS, HK_F32, 0, comm, NULL, NULL) ||
        hk_broadcast(d->label, d->label, (size_t)d->rows, HK_I32, 0, comm, NULL, NULL))
        fail(comm, "sharing the data");
    d->train = d->rows - d->rows / 5;
    return d->rows > 0;
}

/* ---- Matrices, row-major --------------------------------------------------------------------------------------------------- */

/* c[m][n] += a[m][k] b[k][n]. The inner loop runs along rows, so that compilers vectorise it; four rows of c share a row of b. */
__attribute__((optimize("O3"))) static void multiply(float *restrict c, const float *restrict a, const float *restrict b, int m,
                                                     int k, int n)
{
    int i = 0;
    for (; i + 4 <= m; i += 4) {
        float *c0 = c + (size_t)i * n, *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
        for (int p = 0; p < k; p++) {
            const float *row = b + (size_t)p * n, *col = a + (size_t)i * k + p;
            const float a0 = col[0], a1 = col[k], a2 = col[2 * k], a3 = col[3 * k];
            for (int j = 0; j < n; j++) c0[j] += a0 * row[j], c1[j] += a1 * row[j], c2[j] += a2 * row[j], c3[j] += a3 * row[j];
        }
    }
    for (; i < m; i++)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < n; j++) c[(size_t)i * n + j] += a[(size_t)i * k + p] * b[(size_t)p * n + j];
}

/* out[n][m] = in[m][n] */
static void transpose(float *restrict out, const float *restrict in, int m, int n)
{
    for (int i0 = 0; i0 < m; i0 += 16)
        for (int j0 = 0; j0 < n; j0 += 16)
            for (int i = i0; i < m && i < i0 + 16; i++)
                for (int j = j0; j < n && j < j0 + 16; j++) out[(size_t)j * m + i] = in[(size_t)i * n + j];
}

/* ---- The network ----------------------------------------------------------------------------------------------------------- */

static float *weights(const net *w, float *base, int layer)
{
    for (int l = 0; l < layer; l++) base += (size_t)(w->width[l] + 1) * (size_t)w->width[l + 1];
    return base;
}

static size_t params_of(const net *w, int layer) { return (size_t)(w->width[layer] + 1) * (size_t)w->width[layer + 1]; }

/* One vector of all gradients, or buckets with a parameter for each layer. */
static void make_gradients(net *w, hk_comm *comm, int overlap)
{
    static const char *const names[] = {"layer 1", "layer 2", "layer 3"};
    hk_param params[LAYERS_MAX];
    hk_buckets_config config = HK_BUCKETS_INIT;
    config.op = HK_SUM; /* each rank's part is already divided by the whole batch */
    void *whole = NULL;
    for (int l = 0; l < w->layers; l++) params[l] = (hk_param){params_of(w, l), HK_F32, names[l]};
    w->buckets = NULL;
    if (overlap && hk_buckets_create(comm, params, (size_t)w->layers, &config, &w->buckets)) fail_buckets("making buckets");
    if (!overlap && hk_mem_alloc(comm, w->params * sizeof(float), &whole)) fail(comm, "hk_mem_alloc");
    w->whole = whole;
    for (int l = 0; l < w->layers; l++)
        w->grad[l] = overlap ? hk_buckets_gradient(w->buckets, (size_t)l) : weights(w, w->whole, l);
}

static void make_net(net *w, hk_comm *comm, int wide, int rows, int overlap)
{
    static const int small[] = {PIXELS, 64, CLASSES}, large[] = {PIXELS, 1024, 1024, CLASSES};
    uint64_t seed = 7;
    w->layers = wide ? 3 : 2;
    memcpy(w->width, wide ? large : small, (size_t)(w->layers + 1) * sizeof(int));
    w->params = (size_t)(weights(w, NULL, w->layers) - (float *)NULL);
    w->param = take(w->params * sizeof(float));
    w->speed = take(w->params * sizeof(float));
    make_gradients(w, comm, overlap);
    for (int l = 0; l <= w->layers; l++) {
        w->act[l] = take(sizeof(float) * (size_t)rows * (size_t)w->width[l]);
        w->delta[l] = take(sizeof(float) * (size_t)rows * (size_t)w->width[l]);
    }
    for (int l = 0; l < w->layers; l++) { /* uniform, variance 1 / inputs */
        const float scale = sqrtf(3.0f / (float)w->width[l]);
        float *p = weights(w, w->param, l);
        for (int i = 0; i < w->width[l] * w->width[l + 1]; i++) p[i] = scale * ((float)next_random(&seed) / 1073741824.0f - 1);
    }
}

static void forward(net *w, int rows)
{
    for (int l = 0; l < w->layers; l++) {
        const int in = w->width[l], out = w->width[l + 1];
        const float *p = weights(w, w->param, l), *bias = p + (size_t)in * (size_t)out;
        float *y = w->act[l + 1];
        for (int i = 0; i < rows; i++) memcpy(y + (size_t)i * (size_t)out, bias, sizeof(float) * (size_t)out);
        multiply(y, w->act[l], p, rows, in, out);
        if (l + 1 == w->layers) continue;
        for (int i = 0; i < rows * out; i++) y[i] = tanhf(y[i]);
    }
}

/* Softmax and cross-entropy: the loss of the rows, and its derivative / batch in delta of the last layer. */
static double loss_of(net *w, const int *label, int rows, int batch, int *right)
{
    double loss = 0;
    for (int i = 0; i < rows; i++) {
        const float *y = w->act[w->layers] + i * CLASSES;
        float *d = w->delta[w->layers] + i * CLASSES;
        int best = 0;
        double sum = 0;
        for (int c = 1; c < CLASSES; c++)
            if (y[c] > y[best]) best = c;
        for (int c = 0; c < CLASSES; c++) sum += exp((double)y[c] - (double)y[best]);
        for (int c = 0; c < CLASSES; c++)
            d[c] = (float)((exp((double)y[c] - (double)y[best]) / sum - (c == label[i])) / batch);
        loss += log(sum) + (double)y[best] - (double)y[label[i]];
        *right += best == label[i];
    }
    return loss;
}

/* Adds to the gradients. *in_comm: seconds in hocket. */
static void backward(net *w, int rows, float *scratch, double *in_comm)
{
    for (int l = w->layers - 1; l >= 0; l--) {
        const int in = w->width[l], out = w->width[l + 1];
        float *g = w->grad[l], *bias = g + (size_t)in * (size_t)out, *d = w->delta[l + 1];
        transpose(scratch, w->act[l], rows, in);
        multiply(g, scratch, d, in, rows, out);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < out; j++) bias[j] += d[i * out + j];
        const double begin = now();
        if (w->buckets && hk_buckets_ready(w->buckets, (size_t)l)) fail_buckets("adding up gradients");
        *in_comm += now() - begin;
        if (l == 0) break;
        transpose(scratch, weights(w, w->param, l), in, out);
        memset(w->delta[l], 0, sizeof(float) * (size_t)rows * (size_t)in);
        multiply(w->delta[l], d, scratch, rows, out, in);
        for (int i = 0; i < rows * in; i++) w->delta[l][i] *= 1 - w->act[l][i] * w->act[l][i];
    }
}

static void descend(net *w, float rate, float momentum)
{
    for (int l = 0; l < w->layers; l++) {
        float *param = weights(w, w->param, l), *speed = weights(w, w->speed, l);
        for (size_t i = 0; i < params_of(w, l); i++) {
            speed[i] = momentum * speed[i] - rate * w->grad[l][i];
            param[i] += speed[i];
        }
    }
}

/* ---- Training -------------------------------------------------------------------------------------------------------------- */

typedef struct slice { int first, rows; } slice;

static slice slice_of(int batch, int rank, int ranks)
{
    const int first = batch * rank / ranks;
    return (slice){first, batch * (rank + 1) / ranks - first};
}

static void gather_rows(net *w, const data *d, const int *order, slice s, int *label)
{
    for (int i = 0; i < s.rows; i++) {
        memcpy(w->act[0] + i * PIXELS, d->x + order[s.first + i] * PIXELS, sizeof(float) * PIXELS);
        label[i] = d->label[order[s.first + i]];
    }
}

/* Zeroes the gradients and, of buckets, those of all but the last micro-batch are not sent. */
static void begin_micro(net *w, int micro, int micros)
{
    for (int l = 0; micro == 0 && l < w->layers; l++) memset(w->grad[l], 0, params_of(w, l) * sizeof(float));
    if (w->buckets && micros > 1 && hk_buckets_no_sync(w->buckets, micro + 1 < micros)) fail_buckets("accumulating");
}

static void end_micro(net *w, hk_comm *comm, int micro, int micros)
{
    if (w->buckets && hk_buckets_finish(w->buckets)) fail_buckets("adding up gradients");
    if (!w->buckets && micro + 1 == micros && hk_all_reduce(w->whole, w->whole, w->params, HK_F32, HK_SUM, comm, NULL, NULL))
        fail(comm, "adding up gradients");
}

/* One pass over the training rows. Returns this rank's loss; *in_comm: seconds in hocket. */
static double epoch(net *w, const data *d, hk_comm *comm, const settings *s, const int *order, float *scratch, double *in_comm)
{
    double loss = 0;
    int label[ROWS_MAX], right = 0;
    for (int at = 0; at < d->train; at += s->batch) {
        const int batch = d->train - at < s->batch ? d->train - at : s->batch;
        const slice all = slice_of(batch, hk_comm_rank(comm), hk_comm_ranks(comm));
        for (int m = 0; m < s->micro; m++) {
            slice mine = slice_of(all.rows, m, s->micro);
            mine.first += all.first;
            begin_micro(w, m, s->micro);
            hk_span_begin(comm, "forward and backward"); /* seen by `hocket trace`; otherwise next to nothing */
            gather_rows(w, d, order + at, mine, label);
            forward(w, mine.rows);
            loss += loss_of(w, label, mine.rows, batch, &right);
            backward(w, mine.rows, scratch, in_comm);
            hk_span_end(comm);
            const double begin = now();
            end_micro(w, comm, m, s->micro);
            *in_comm += now() - begin;
        }
        descend(w, s->rate, s->momentum);
    }
    return loss;
}

/* This rank's share of the held-out rows that are read right. */
static int held_out_right(net *w, const data *d, hk_comm *comm, int rows_max)
{
    const slice mine = slice_of(d->rows - d->train, hk_comm_rank(comm), hk_comm_ranks(comm));
    int right = 0;
    for (int at = 0; at < mine.rows; at += rows_max) {
        const int first = d->train + mine.first + at, n = mine.rows - at < rows_max ? mine.rows - at : rows_max;
        memcpy(w->act[0], d->x + first * PIXELS, sizeof(float) * (size_t)n * PIXELS);
        forward(w, n);
        loss_of(w, d->label + first, n, 1, &right);
    }
    return right;
}

static double train(net *w, const data *d, hk_comm *comm, const settings *s, FILE *losses)
{
    const size_t widest = s->wide ? 1024 : 64;
    float *scratch = take(sizeof(float) * widest * (widest > (size_t)s->batch ? widest : (size_t)s->batch));
    int order[ROWS_MAX];
    uint64_t seed = 2;
    double accuracy = 0;
    for (int i = 0; i < d->train; i++) order[i] = i;
    for (int e = 0; e < s->epochs; e++) {
        double in_comm = 0, sums[2];
        shuffle(order, d->train, &seed);
        const double begin = now();
        sums[0] = epoch(w, d, comm, s, order, scratch, &in_comm);
        const double took = now() - begin;
        sums[1] = held_out_right(w, d, comm, s->batch);
        if (hk_all_reduce(sums, sums, 2, HK_F64, HK_SUM, comm, NULL, NULL)) fail(comm, "adding up losses");
        accuracy = 100 * sums[1] / (d->rows - d->train);
        if (hk_comm_rank(comm)) continue;
        printf("epoch %2d  loss %.6f  held-out accuracy %5.2f %%  ", e + 1, sums[0] / d->train, accuracy);
        printf("%8.0f samples/s  %4.1f %% of the time in communication\n", d->train / took, 100 * in_comm / took);
        fflush(stdout);
        if (losses) fprintf(losses, "%.17g\n", sums[0] / d->train);
    }
    free(scratch);
    return accuracy;
}

static void free_all(net *w, hk_comm *comm, data *d)
{
    if (hk_buckets_free(w->buckets)) fail_buckets("freeing buckets");
    if (hk_mem_free(comm, w->whole)) fail(comm, "hk_mem_free");
    for (int l = 0; l <= w->layers; l++) free(w->act[l]), free(w->delta[l]);
    free(w->param), free(w->speed);
    free(d->x), free(d->label);
}

/* ---- Command line ---------------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: train_digits [--wide] [--epochs N] [--batch N] [--rate X] [--overlap] [--accumulate K]\n"
    "                    [--data FILE] [--losses FILE] [--need-accuracy PERCENT]\n"
    "  --wide            64-1024-1024-10 instead of 64-64-10\n"
    "  --epochs N        passes over the training data (20; wide 3)\n"
    "  --batch N         rows of a step, over all ranks (64)\n"
    "  --rate X          learning rate (0.1; wide 0.02)\n"
    "  --overlap         gradients in buckets, sent while earlier layers are at work\n"
    "  --accumulate K    each step in K micro-batches, with the same result (1)\n"
    "  --data FILE       gzip'ed rows of 64 pixels and a label\n"
    "  --losses FILE     rank 0 writes the loss of each epoch, one a line\n"
    "  --need-accuracy P exit code 1 if the held-out accuracy ends below P percent\n"
    "exit codes: 0, 1 accuracy not met, 2 arguments or files, 3 communicator\n"
    "example: hocket run -n 4 -- train_digits --need-accuracy 95\n";

static int parse(int argc, char **argv, settings *s)
{
    static const struct option options[] = {
        {"wide", no_argument, NULL, 'w'},       {"epochs", required_argument, NULL, 'e'},
        {"batch", required_argument, NULL, 'b'}, {"rate", required_argument, NULL, 'r'},
        {"data", required_argument, NULL, 'd'},  {"losses", required_argument, NULL, 'l'},
        {"overlap", no_argument, NULL, 'o'},     {"accumulate", required_argument, NULL, 'a'},
        {"need-accuracy", required_argument, NULL, 'n'}, {"help", no_argument, NULL, 'h'}, {0},
    };
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        switch (o) {
        case 'w': s->wide = 1; break;
        case 'e': s->epochs = atoi(optarg); break;
        case 'b': s->batch = atoi(optarg); break;
        case 'r': s->rate = strtof(optarg, NULL); break;
        case 'o': s->overlap = 1; break;
        case 'a': s->micro = atoi(optarg); break;
        case 'd': s->data = optarg; break;
        case 'l': s->losses = optarg; break;
        case 'n': s->need = atof(optarg); break;
        case 'h': return fputs(usage, stdout), exit(0), 0;
        default: return 0;
        }
    }
    if (!s->epochs) s->epochs = s->wide ? 3 : 20;
    if (s->rate <= 0) s->rate = s->wide ? 0.02f : 0.1f;
    return optind == argc && s->epochs > 0 && s->batch > 0 && s->batch <= ROWS_MAX && s->micro > 0;
}

int main(int argc, char **argv)
{
    settings s = {.batch = 64, .micro = 1, .momentum = 0.9f};
    hk_comm *comm;
    data d;
    net w;
    if (!parse(argc, argv, &s)) return fputs(usage, stderr), 2;
    if (hk_comm_create_env(&comm, NULL)) fail(NULL, "making the communicator");
    const int first = hk_comm_rank(comm) == 0;
    if (!load(comm, s.data, &d)) return free(d.x), free(d.label), hk_comm_destroy(comm), 2;
    FILE *losses = first && s.losses ? fopen(s.losses, "w") : NULL;
    if (first && s.losses && !losses) {
        fprintf(stderr, "train_digits: cannot write '%s': %s\n", s.losses, strerror(errno));
        return 2;
    }
    make_net(&w, comm, s.wide, s.batch, s.overlap);
    if (first)
        printf("%d ranks, %zu parameters, %d rows to train on, %d held out\n", hk_comm_ranks(comm), w.params, d.train,
               d.rows - d.train);
    const double accuracy = train(&w, &d, comm, &s, losses);
    if (losses) fclose(losses);
    const int short_of = accuracy < s.need;
    if (first && short_of) fprintf(stderr, "train_digits: held-out accuracy %.2f %% is below %.2f %%\n", accuracy, s.need);
    free_all(&w, comm, &d);
    if (hk_comm_destroy(comm)) fail(NULL, "ending");
    return short_of;
}
