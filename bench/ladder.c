/* SPDX-License-Identifier: Apache-2.0
 *
 * One data-parallel training step, its gradients reduced in one of several ways; scripts/ladder compares them.
 *
 * The model is a perceptron, 64-512 (nine times)-10 if not said otherwise: 2.1 million parameters, a weight and a bias tensor for each layer.
 * Data and teacher come from a seeded generator, alike on all ranks; each takes its own rows. A run ends with one line of figures from rank
 * 0: per optimiser step, the time and bytes of the rank with most of them, the ranks' average of time inside hocket and of CPU. */
#include <hocket/hocket.h>
#include <hocket/train.h>

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { INPUTS = 64, CLASSES = 10, LAYERS_MAX = 32, POOL = 4096, JUDGED = 256 };

/* COMPUTE reduces nothing, COMM computes nothing. */
typedef enum how { COMPUTE, COMM, TENSORS, BUCKETS, OVERLAP } how;

static const struct rung { const char *name; how way; const char *algorithm; int micro; } rungs[] = {
    {"compute", COMPUTE, NULL, 1}, {"comm", COMM, NULL, 1},
    {"reduce_broadcast", TENSORS, "reduce_broadcast", 1}, {"ring", TENSORS, "ring", 1}, {"auto", TENSORS, NULL, 1},
    {"buckets", BUCKETS, NULL, 1}, {"overlap", OVERLAP, NULL, 1}, {"accumulate", OVERLAP, NULL, 4},
};

typedef struct settings {
    const struct rung *rung;
    int batch, steps, warmup, width, hidden; /* batch: rows of a micro-batch of one rank; hidden: layers of `width` units */
    size_t bucket, first;
    float rate;
    double away; /* seconds of a micro-batch that pass instead of computing; 0: compute */
} settings;

/* Tensor 2l is layer l's weights, [in][out], 2l + 1 its biases. */
typedef struct model {
    hk_comm *comm;
    hk_buckets *buckets;
    int layers, unit[LAYERS_MAX + 1];
    size_t count[2 * LAYERS_MAX];
    float *param[2 * LAYERS_MAX], *grad[2 * LAYERS_MAX];
    float *act[LAYERS_MAX + 1], *delta[LAYERS_MAX + 1], *scratch;
    float *x;
    int *label;
    double blocked; /* seconds inside hocket */
} model;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "ladder: %s: %s\n", what, why);
    exit(3);
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) fail("memory", "there is not enough");
    return memset(p, 0, bytes);
}

static void pass(double seconds)
{
    const struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&t, NULL);
}

/* Uniform, -1 to 1. */
static float drawn(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1;
}

/* ---- Matrices, row-major; inner loops run along rows and vectorise ------------------------------------------------------------- */

/* c[m][n] += a[m][k] b[k][n]; four rows of c share a row of b. */
__attribute__((optimize("O3"))) static void multiply(float *restrict c, const float *restrict a, const float *restrict b, int m, int k, int n)
{
    int i = 0;
    for (; i + 4 <= m; i += 4) {
        float *c0 = c + (size_t)i * (size_t)n, *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
        for (int p = 0; p < k; p++) {
            const float *row = b + (size_t)p * (size_t)n, *col = a + (size_t)i * (size_t)k + p;
            const float a0 = col[0], a1 = col[k], a2 = col[2 * k], a3 = col[3 * k];
            for (int j = 0; j < n; j++) c0[j] += a0 * row[j], c1[j] += a1 * row[j], c2[j] += a2 * row[j], c3[j] += a3 * row[j];
        }
    }
    for (; i < m; i++)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < n; j++) c[(size_t)i * (size_t)n + j] += a[(size_t)i * (size_t)k + p] * b[(size_t)p * (size_t)n + j];
}

/* out[n][m] = in[m][n] */
static void transpose(float *restrict out, const float *restrict in, int m, int n)
{
    for (int i0 = 0; i0 < m; i0 += 16)
        for (int j0 = 0; j0 < n; j0 += 16)
            for (int i = i0; i < m && i < i0 + 16; i++)
                for (int j = j0; j < n && j < j0 + 16; j++) out[(size_t)j * (size_t)m + i] = in[(size_t)i * (size_t)n + j];
}

/* x / (1 + |x|): smooth, so that two orders of adding up stay close, and without a call. */
__attribute__((optimize("O3"))) static void squash(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] /= 1 + fabsf(y[i]);
}

__attribute__((optimize("O3"))) static void unsquash(float *restrict d, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) d[i] *= (1 - fabsf(y[i])) * (1 - fabsf(y[i]));
}

/* ---- The model -------------------------------------------------------------------------------------------------------------------- */

static void make_data(model *m)
{
    uint64_t seed = 11;
    float teacher[CLASSES][INPUTS];
    m->x = take(sizeof(float) * POOL * INPUTS);
    m->label = take(sizeof(int) * POOL);
    for (int c = 0; c < CLASSES; c++)
        for (int i = 0; i < INPUTS; i++) teacher[c][i] = drawn(&seed);
    for (int r = 0; r < POOL; r++) {
        float best = -INFINITY;
        for (int i = 0; i < INPUTS; i++) m->x[r * INPUTS + i] = 1.5f * drawn(&seed);
        for (int c = 0; c < CLASSES; c++) {
            float y = 0;
            for (int i = 0; i < INPUTS; i++) y += teacher[c][i] * m->x[r * INPUTS + i];
            if (y > best) best = y, m->label[r] = c;
        }
    }
}

static void make_gradients(model *m, const settings *s)
{
    hk_param params[2 * LAYERS_MAX];
    const size_t n = 2 * (size_t)m->layers;
    const int bucketed = s->rung->way == BUCKETS || s->rung->way == OVERLAP || s->rung->way == COMM;
    for (size_t i = 0; i < n; i++) params[i] = (hk_param){m->count[i], HK_F32, NULL};
    hk_buckets_config config = HK_BUCKETS_INIT;
    config.bucket_bytes = s->bucket;
    config.first_bytes = s->first;
    if (bucketed && hk_buckets_create(m->comm, params, n, &config, &m->buckets)) fail("making buckets", hk_buckets_last_error());
    for (size_t i = 0; i < n; i++) m->grad[i] = bucketed ? hk_buckets_gradient(m->buckets, i) : take(m->count[i] * sizeof(float));
}

static void make_model(model *m, const settings *s)
{
    const size_t rows = (size_t)(s->batch > JUDGED ? s->batch : JUDGED), widest = (size_t)(s->width > INPUTS ? s->width : INPUTS);
    uint64_t seed = 7;
    m->layers = s->hidden + 1;
    for (int l = 0; l <= m->layers; l++) {
        m->unit[l] = l == 0 ? INPUTS : l == m->layers ? CLASSES : s->width;
        m->act[l] = take(sizeof(float) * rows * (size_t)m->unit[l]);
        m->delta[l] = take(sizeof(float) * rows * (size_t)m->unit[l]);
    }
    m->scratch = take(sizeof(float) * widest * (rows > widest ? rows : widest));
    for (int l = 0; l < m->layers; l++) {
        const float scale = sqrtf(6.0f / (float)m->unit[l]); /* a signal that goes through squash keeps its size */
        m->count[2 * l] = (size_t)m->unit[l] * (size_t)m->unit[l + 1];
        m->count[2 * l + 1] = (size_t)m->unit[l + 1];
        for (int i = 2 * l; i <= 2 * l + 1; i++) m->param[i] = take(m->count[i] * sizeof(float));
        for (size_t i = 0; i < m->count[2 * l]; i++) m->param[2 * l][i] = scale * drawn(&seed);
    }
}

static void forward(model *m, int rows)
{
    for (int l = 0; l < m->layers; l++) {
        const int in = m->unit[l], out = m->unit[l + 1];
        float *y = m->act[l + 1];
        for (int i = 0; i < rows; i++) memcpy(y + (size_t)i * (size_t)out, m->param[2 * l + 1], sizeof(float) * (size_t)out);
        multiply(y, m->act[l], m->param[2 * l], rows, in, out);
        if (l + 1 < m->layers) squash(y, (size_t)rows * (size_t)out);
    }
}

/* Cross-entropy, summed over rows; its derivative / share in the last delta. */
static double loss_of(model *m, const int *label, int rows, int share)
{
    double loss = 0;
    for (int i = 0; i < rows; i++) {
        const float *y = m->act[m->layers] + i * CLASSES;
        float *d = m->delta[m->layers] + i * CLASSES;
        double sum = 0, top = y[0];
        for (int c = 1; c < CLASSES; c++) top = y[c] > top ? y[c] : top;
        for (int c = 0; c < CLASSES; c++) sum += exp(y[c] - top);
        for (int c = 0; c < CLASSES; c++) d[c] = (float)((exp(y[c] - top) / sum - (c == label[i])) / share);
        loss += log(sum) + top - y[label[i]];
    }
    return loss;
}

static void mark(model *m, size_t i)
{
    const double begin = now();
    if (hk_buckets_ready(m->buckets, i)) fail("marking a gradient", hk_buckets_last_error());
    m->blocked += now() - begin;
}

/* Adds to the gradients; marks each when it is complete, if asked to. */
static void backward(model *m, int rows, int marks)
{
    for (int l = m->layers - 1; l >= 0; l--) {
        const int in = m->unit[l], out = m->unit[l + 1];
        float *d = m->delta[l + 1], *bias = m->grad[2 * l + 1];
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < out; j++) bias[j] += d[(size_t)i * (size_t)out + j];
        if (marks) mark(m, 2 * (size_t)l + 1);
        transpose(m->scratch, m->act[l], rows, in);
        multiply(m->grad[2 * l], m->scratch, d, in, rows, out);
        if (marks) mark(m, 2 * (size_t)l);
        if (l == 0) break;
        transpose(m->scratch, m->param[2 * l], in, out);
        memset(m->delta[l], 0, sizeof(float) * (size_t)rows * (size_t)in);
        multiply(m->delta[l], d, m->scratch, rows, out, in);
        unsquash(m->delta[l], m->act[l], (size_t)rows * (size_t)in);
    }
}

/* ---- A step ----------------------------------------------------------------------------------------------------------------------- */

static void reduce(model *m, const struct rung *g)
{
    const double begin = now();
    hk_options options = HK_OPTIONS_INIT;
    options.algorithm = g->algorithm;
    for (int i = 2 * m->layers - 1; g->way == TENSORS && i >= 0; i--)
        if (hk_all_reduce(m->grad[i], m->grad[i], m->count[i], HK_F32, HK_AVG, m->comm, &options, NULL)) fail("all_reduce", hk_last_error(m->comm));
    m->blocked += now() - begin;
}

static void finish(model *m)
{
    const double begin = now();
    if (hk_buckets_finish(m->buckets)) fail("reducing gradients", hk_buckets_last_error());
    m->blocked += now() - begin;
}

/* A micro-batch that something else computes: a third of its time forward, the rest backward in proportion to weights. */
static void micro_batch_away(model *m, const settings *s)
{
    double all = 0;
    for (int l = 0; l < m->layers; l++) all += (double)m->count[2 * l];
    pass(s->away / 3);
    for (int l = m->layers - 1; l >= 0; l--) {
        pass(s->away * 2 / 3 * (double)m->count[2 * l] / all);
        for (int i = 2 * l + 1; s->rung->way == OVERLAP && i >= 2 * l; i--) mark(m, (size_t)i);
    }
}

static void micro_batch(model *m, const settings *s, int first)
{
    const how way = s->rung->way;
    for (int i = 0; i < s->batch; i++)
        memcpy(m->act[0] + i * INPUTS, m->x + (size_t)((first + i) % POOL) * INPUTS, sizeof(float) * INPUTS);
    int label[s->batch];
    for (int i = 0; i < s->batch; i++) label[i] = m->label[(first + i) % POOL];
    forward(m, s->batch);
    loss_of(m, label, s->batch, s->batch * s->rung->micro);
    backward(m, s->batch, way == OVERLAP);
}

static void step(model *m, const settings *s, int number)
{
    const struct rung *g = s->rung;
    const int of_rank = s->batch * g->micro, first = (number * hk_comm_ranks(m->comm) + hk_comm_rank(m->comm)) * of_rank;
    for (int i = 0; g->way != COMM && i < 2 * m->layers; i++) memset(m->grad[i], 0, m->count[i] * sizeof(float));
    for (int k = 0; k < g->micro; k++) {
        if (g->micro > 1 && hk_buckets_no_sync(m->buckets, k + 1 < g->micro)) fail("accumulating", hk_buckets_last_error());
        if (s->away > 0 && g->way != COMM) micro_batch_away(m, s);
        else if (g->way != COMM) micro_batch(m, s, first + k * s->batch);
        if (g->way == BUCKETS || g->way == COMM)
            for (int i = 2 * m->layers - 1; i >= 0; i--) mark(m, (size_t)i);
        if (m->buckets) finish(m);
    }
    if (g->way == TENSORS) reduce(m, g);
    for (int i = 0; g->way != COMM && i < 2 * m->layers; i++)
        for (size_t j = 0; j < m->count[i]; j++) m->param[i][j] -= s->rate * m->grad[i][j];
}

/* ---- Figures ---------------------------------------------------------------------------------------------------------------------- */

/* Of a fixed part of the data. */
static double judge(model *m)
{
    memcpy(m->act[0], m->x, sizeof(float) * JUDGED * INPUTS);
    forward(m, JUDGED);
    return loss_of(m, m->label, JUDGED, 1) / JUDGED;
}

static void reduced(model *m, double *v, size_t n, hk_redop op)
{
    if (hk_all_reduce(v, v, n, HK_F64, op, m->comm, NULL, NULL)) fail("adding up figures", hk_last_error(m->comm));
}

/* Have all ranks the same parameters? (Where they reduce nothing they need not.) */
static int same(model *m, double loss, how way)
{
    double bounds[2] = {loss, -loss};
    reduced(m, bounds, 2, HK_MAX);
    if (isfinite(loss) && (way == COMPUTE || bounds[0] == -bounds[1])) return 1;
    if (hk_comm_rank(m->comm) == 0) fprintf(stderr, "ladder: ranks end with losses from %.9g to %.9g\n", -bounds[1], bounds[0]);
    return 0;
}

static uint64_t sent(const model *m)
{
    hk_stats_t stats = {.size = sizeof stats};
    if (hk_stats(m->comm, &stats)) fail("hk_stats", hk_last_error(m->comm));
    return stats.shm.bytes_sent + stats.tcp.bytes_sent;
}

static int measure(model *m, const settings *s)
{
    for (int k = 0; k < s->warmup; k++) step(m, s, k);
    if (hk_barrier(m->comm, NULL, NULL)) fail("barrier", hk_last_error(m->comm));
    m->blocked = 0;
    const uint64_t bytes = sent(m);
    const double cpu_before = cpu(), begin = now();
    for (int k = 0; k < s->steps; k++) step(m, s, s->warmup + k);
    const double took_here = now() - begin;
    double mean[2] = {m->blocked, cpu() - cpu_before}, most[2] = {took_here, (double)(sent(m) - bytes)};
    reduced(m, most, 2, HK_MAX);
    reduced(m, mean, 2, HK_AVG);
    const double took = most[0];
    const double loss = judge(m), steps = s->steps, rows = (double)s->batch * s->rung->micro * hk_comm_ranks(m->comm);
    hk_buckets_info_t info = {.size = sizeof info};
    if (m->buckets) hk_buckets_info(m->buckets, &info);
    size_t parameters = 0;
    for (int i = 0; i < 2 * m->layers; i++) parameters += m->count[i];
    if (hk_comm_rank(m->comm) == 0)
        printf("rung=%s ranks=%d parameters=%zu batch=%d steps=%d buckets=%zu step_ms=%.3f samples_s=%.1f sent_bytes=%.0f exposed_ms=%.3f "
               "cpu_ms=%.3f loss=%.9f\n", s->rung->name, hk_comm_ranks(m->comm), parameters, s->batch, s->steps, info.buckets, 1e3 * took / steps,
               rows * steps / took, most[1] / steps, 1e3 * mean[0] / steps, 1e3 * mean[1] / steps, loss);
    return same(m, loss, s->rung->way);
}

static void free_model(model *m)
{
    for (int i = 0; i < 2 * m->layers; i++) {
        free(m->param[i]);
        if (!m->buckets) free(m->grad[i]);
    }
    if (hk_buckets_free(m->buckets)) fail("freeing buckets", hk_buckets_last_error());
    for (int l = 0; l <= m->layers; l++) free(m->act[l]), free(m->delta[l]);
    free(m->scratch), free(m->x), free(m->label);
}

/* ---- Command line ----------------------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: ladder --rung NAME [OPTION...]\n"
    "  --rung NAME     reduce_broadcast, ring, auto: an all_reduce for each tensor after backward, by that algorithm\n"
    "                  buckets: gradient buckets, marked after backward; overlap: as backward gets to them\n"
    "                  accumulate: overlap, a step of 4 micro-batches\n"
    "                  compute: reduces nothing; comm: reduces buckets, computes nothing\n"
    "  --batch N       rows of a rank and micro-batch (64)\n"
    "  --steps N       steps to measure (10), after --warmup N (2)\n"
    "  --bucket BYTES  of a bucket, and --first BYTES of the one launched last (0: the default)\n"
    "  --width N       units of a hidden layer (512), of which there are --hidden N (9)\n"
    "  --rate X        learning rate (0.02)\n"
    "  --away MS       compute nothing, let MS pass for a micro-batch instead, as if an accelerator did\n"
    "exit codes: 0, 1 ranks end with different parameters, 2 arguments, 3 communicator\n";

static int parse(int argc, char **argv, settings *s)
{
    static const struct option options[] = {
        {"rung", required_argument, NULL, 'r'}, {"batch", required_argument, NULL, 'b'}, {"steps", required_argument, NULL, 's'},
        {"warmup", required_argument, NULL, 'u'}, {"bucket", required_argument, NULL, 'B'}, {"first", required_argument, NULL, 'F'},
        {"width", required_argument, NULL, 'w'}, {"hidden", required_argument, NULL, 'h'}, {"rate", required_argument, NULL, 'x'},
        {"away", required_argument, NULL, 'a'}, {0},
    };
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        switch (o) {
        case 'r':
            for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++)
                if (!strcmp(optarg, rungs[i].name)) s->rung = &rungs[i];
            break;
        case 'b': s->batch = atoi(optarg); break;
        case 's': s->steps = atoi(optarg); break;
        case 'u': s->warmup = atoi(optarg); break;
        case 'B': s->bucket = strtoull(optarg, NULL, 10); break;
        case 'F': s->first = strtoull(optarg, NULL, 10); break;
        case 'w': s->width = atoi(optarg); break;
        case 'h': s->hidden = atoi(optarg); break;
        case 'a': s->away = 1e-3 * atof(optarg); break;
        case 'x': s->rate = strtof(optarg, NULL); break;
        default: return 0;
        }
    }
    return optind == argc && s->rung && s->batch > 0 && s->batch <= POOL && s->steps > 0 && s->warmup >= 0 && s->width > 0 && s->width <= 8192 &&
           s->hidden > 0 && s->hidden < LAYERS_MAX;
}

int main(int argc, char **argv)
{
    settings s = {.batch = 64, .steps = 10, .warmup = 2, .width = 512, .hidden = 9, .rate = 0.02f};
    model m = {0};
    if (!parse(argc, argv, &s)) return fputs(usage, stderr), 2;
    if (hk_comm_create_env(&m.comm, NULL)) fail("making the communicator", hk_last_error(NULL));
    make_data(&m);
    make_model(&m, &s);
    make_gradients(&m, &s);
    const int good = measure(&m, &s);
    free_model(&m);
    if (hk_comm_destroy(m.comm)) fail("ending", hk_last_error(NULL));
    return !good;
}
