/* Attention over a packed row of groups and its gradients, in bfloat16 on a processor with AVX-512 BF16: each answer sees
 * its group's prompt and itself, a prompt sees itself, nothing else.
 *
 * The row consists of segments, the tokens from one offset to the next: of each group first its prompt, then its answers.
 * A group's keys are worked on once for each key/value head, by one thread. Scores never leave the cache; the backward
 * pass computes them again from the logarithm of each query's sum. Nothing is checked here; library.py does that.
 *
 * Products read one factor by rows, two numbers of a row together, and the other packed: [pairs, columns, 2].
 * Shapes: N tokens of the row, H query heads, K key/value heads, R = H / K, D head size (a multiple of 32).
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "bf16.h"

#define SIDE (WIDE * LANES) /* keys, or queries, of a block */

typedef struct {
    const bf16 *at;      /* [tokens, heads, D], D dense */
    int64_t token, head; /* steps */
} Rows;

typedef struct {
    bf16 *at;
    int64_t token, head;
} RowsOut;

typedef struct {
    int64_t groups, tokens, heads, kv_heads, size, window;
    const int64_t *first;   /* [groups + 1] the segment that each group begins with */
    const int64_t *offsets; /* [segments + 1] */
    float scale;
    char *scratch; /* a piece of scratch_bytes for each thread */
    int64_t scratch_bytes;
} Row;

INLINE int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE const bf16 *row_of(Rows x, int64_t token, int64_t head) { return x.at + token * x.token + head * x.head; }

/* acc [high, width] += x [high, stride] . w [pairs, step registers], `wide` registers of columns. */
INLINE void accumulate_(const int high, const int wide, const uint32_t *x, int64_t stride, const __m512i *w, int64_t step,
                        int64_t pairs, float *acc, int64_t width) {
    __m512 sum[HIGH][WIDE];
    for (int r = 0; r < high; r++)
        for (int c = 0; c < wide; c++) sum[r][c] = _mm512_loadu_ps(acc + r * width + c * LANES);
    multiply(high, wide, x, stride, w, step, pairs, NULL, sum);
    for (int r = 0; r < high; r++)
        for (int c = 0; c < wide; c++) _mm512_storeu_ps(acc + r * width + c * LANES, sum[r][c]);
}

#define OF_WIDTH(high)                                                                            \
    switch (wide) {                                                                               \
        case 1: accumulate_(high, 1, x, stride, w, step, pairs, acc, width); return;              \
        case 2: accumulate_(high, 2, x, stride, w, step, pairs, acc, width); return;              \
        case 3: accumulate_(high, 3, x, stride, w, step, pairs, acc, width); return;              \
        default: accumulate_(high, 4, x, stride, w, step, pairs, acc, width); return;             \
    }

/* The same for a number of rows and registers that is known only now. */
static void accumulate(int64_t high, int64_t wide, const uint32_t *x, int64_t stride, const __m512i *w, int64_t step,
                       int64_t pairs, float *acc, int64_t width) {
    switch (high) {
        case 1: OF_WIDTH(1)
        case 2: OF_WIDTH(2)
        case 3: OF_WIDTH(3)
        case 4: OF_WIDTH(4)
        case 5: OF_WIDTH(5)
        default: OF_WIDTH(6)
    }
}

/* acc [high, D] += x [high, stride] . w [pairs, D, 2]. */
static void accumulate_heads(int64_t high, const bf16 *x, int64_t stride, const bf16 *w, int64_t size, int64_t pairs,
                             float *acc) {
    const int64_t step = size / LANES;
    for (int64_t c = 0; c < step; c += WIDE)
        accumulate(high, least(WIDE, step - c), (const uint32_t *)x, stride / 2, (const __m512i *)w + c, step, pairs,
                   acc + c * LANES, size);
}

/* Blocks of SIDE rows of x, their dimensions as pairs: out [blocks, D / 2, SIDE, 2]; what is beyond `count` is 0. */
static void pack_dimensions(Rows x, int64_t token, int64_t head, int64_t count, int64_t size, bf16 *out) {
    for (int64_t i = 0; i < up(count, SIDE); i++) {
        uint32_t *to = (uint32_t *)out + i / SIDE * SIDE * size / 2 + i % SIDE;
        const uint32_t *from = (const uint32_t *)row_of(x, token + i, head);
        for (int64_t d = 0; d < size / 2; d++) to[d * SIDE] = i < count ? from[d] : 0;
    }
}

/* Rows of x as pairs: out [ceil(count / 2), D, 2]; an odd last one meets zeros. */
static void pack_tokens(Rows x, int64_t token, int64_t head, int64_t count, int64_t size, bf16 *out) {
    const __m512i zero = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 2)
        for (int64_t d = 0; d < size; d += LANES) {
            const __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row_of(x, token + i, head) + d)));
            const __m512i b = i + 1 < count
                ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(row_of(x, token + i + 1, head) + d)))
                : zero;
            _mm512_storeu_si512(out + (i * size + 2 * d), _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
}

/* What the tokens of a segment see: keys low .. of the prompt, if they are an answer's, and their own. `queries` tokens
 * from place `at` of the segment on, which are at position `position` and later. */
typedef struct {
    int64_t segment, start, at, queries, position, prompt;
} Block;

/* The first key of a stretch that begins at position `begin` that a query at `position` may see. */
INLINE int64_t lowest(const Row *row, int64_t position, int64_t begin) {
    return row->window > 0 ? most(0, position - row->window + 1 - begin) : 0;
}

INLINE __mmask16 between(int64_t first, int64_t low, int64_t end) {
    const __m512i lanes = _mm512_add_epi32(_mm512_set1_epi32((int)first),
                                           _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    return _mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32((int)low)) &
           _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32((int)end));
}

/* Forward: keys [blocks, D / 2, SIDE, 2] and values [tokens / 2, D, 2] of each segment from `place` on. */
typedef struct {
    bf16 *keys, *values, *weights;
    float *scores, *sums;
} Forward;

INLINE int64_t place_of(const Row *row, int64_t group, int64_t segment) {
    int64_t place = 0;
    for (int64_t s = row->first[group]; s < segment; s++) place += up(row->offsets[s + 1] - row->offsets[s], SIDE);
    return place;
}

/* Tokens of the largest group, its segments filled up to whole blocks; and of its prompt and longest answer. */
static void longest(const Row *row, int64_t *group_tokens, int64_t *seen) {
    *group_tokens = *seen = 0;
    for (int64_t g = 0; g < row->groups; g++) {
        const int64_t prompt = row->offsets[row->first[g] + 1] - row->offsets[row->first[g]];
        *group_tokens = most(*group_tokens, place_of(row, g, row->first[g + 1]));
        for (int64_t s = row->first[g]; s < row->first[g + 1]; s++)
            *seen = most(*seen, up(prompt, SIDE) + up(row->offsets[s + 1] - row->offsets[s], SIDE));
    }
}

/* Scores of `high` queries with the first `end` keys of a stretch, masked: out [high, width]. */
static void score(const Row *row, int64_t high, Rows q, int64_t token, int64_t head, const bf16 *keys, int64_t end,
                  const int64_t *low, const int64_t *limit, float *out, int64_t width) {
    const int64_t pairs = row->size / 2;
    for (int64_t k = 0; k < end; k += SIDE) {
        const int64_t wide = (least(SIDE, end - k) + LANES - 1) / LANES;
        for (int64_t r = 0; r < high; r++)
            for (int64_t c = 0; c < wide; c++) _mm512_storeu_ps(out + r * width + k + c * LANES, _mm512_setzero_ps());
        accumulate(high, wide, (const uint32_t *)row_of(q, token, head), q.token / 2,
                   (const __m512i *)(keys + k * row->size), WIDE, pairs, out + k, width);
        for (int64_t r = 0; r < high; r++)
            for (int64_t c = 0; c < wide; c++) {
                float *at = out + r * width + k + c * LANES;
                const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(at), _mm512_set1_ps(row->scale));
                const __mmask16 seen = between(k + c * LANES, low[r], limit[r]);
                _mm512_storeu_ps(at, _mm512_mask_blend_ps(seen, _mm512_set1_ps(-INFINITY), scaled));
            }
    }
}

/* exp(scores - their maximum), rounded, into weights; the sum of them, and the logarithm of the sum of exp(scores). */
INLINE float soften(const float *scores, int64_t width, bf16 *weights, float *log_sum) {
    __m512 top = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (int64_t t = 0; t < width; t += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + t));
    const float highest = _mm512_reduce_max_ps(top);
    for (int64_t t = 0; t < width; t += LANES) {
        const __m512 weight = exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + t), _mm512_set1_ps(highest)));
        total = _mm512_add_ps(total, weight);
        store16(weights + t, weight);
    }
    const float sum = _mm512_reduce_add_ps(total);
    *log_sum = highest + logf(sum);
    return sum;
}

/* `high` queries of one head from place `at` of a segment on. */
static void forward_rows(const Row *row, const Forward *f, int64_t high, Rows q, int64_t head, const Block *b,
                         const bf16 *keys, const bf16 *values, RowsOut out, float *log_sums) {
    const int64_t size = row->size, token = b->start + b->at, own_end = b->at + high;
    const int64_t shared = up(b->prompt, LANES), width = shared + up(own_end, LANES);
    int64_t low[2][HIGH], limit[2][HIGH];
    for (int64_t r = 0; r < high; r++) {
        low[0][r] = lowest(row, b->position + r, 0);
        low[1][r] = lowest(row, b->position + r, b->prompt);
        limit[0][r] = b->prompt;
        limit[1][r] = b->at + r + 1;
    }
    score(row, high, q, token, head, f->keys, b->prompt, low[0], limit[0], f->scores, width);
    score(row, high, q, token, head, keys, own_end, low[1], limit[1], f->scores + shared, width);
    float totals[HIGH];
    for (int64_t r = 0; r < high; r++)
        totals[r] = soften(f->scores + r * width, width, f->weights + r * width, log_sums + head * row->tokens + token + r);
    memset(f->sums, 0, sizeof(float) * high * size);
    accumulate_heads(high, f->weights, width, f->values, size, (b->prompt + 1) / 2, f->sums);
    accumulate_heads(high, f->weights + shared, width, values, size, (own_end + 1) / 2, f->sums);
    for (int64_t r = 0; r < high; r++)
        for (int64_t d = 0; d < size; d += LANES)
            store16(out.at + (token + r) * out.token + head * out.head + d,
                    _mm512_div_ps(_mm512_loadu_ps(f->sums + r * size + d), _mm512_set1_ps(totals[r])));
}

INLINE void *take(char **from, int64_t bytes) {
    void *taken = *from;
    *from += up(bytes, 64);
    return taken;
}

/* One key/value head of one group. */
static void forward_group(const Row *row, int64_t group, int64_t kv_head, Rows q, Rows k, Rows v, RowsOut out,
                          float *log_sums, char *scratch) {
    const int64_t size = row->size, repeat = row->heads / row->kv_heads;
    const int64_t first = row->first[group], end = row->first[group + 1], *offsets = row->offsets;
    int64_t tokens, seen;
    longest(row, &tokens, &seen);
    Forward f = {take(&scratch, 2 * tokens * size), take(&scratch, 2 * tokens * size), take(&scratch, 2 * HIGH * seen),
                 take(&scratch, 4 * HIGH * seen), take(&scratch, 4 * HIGH * size)};
    for (int64_t s = first; s < end; s++) {
        const int64_t place = place_of(row, group, s) * size, count = offsets[s + 1] - offsets[s];
        pack_dimensions(k, offsets[s], kv_head, count, size, f.keys + place);
        pack_tokens(v, offsets[s], kv_head, count, size, f.values + place);
    }
    for (int64_t s = first; s < end; s++) {
        const int64_t place = place_of(row, group, s) * size, count = offsets[s + 1] - offsets[s];
        const int64_t prompt = s == first ? 0 : offsets[first + 1] - offsets[first];
        for (int64_t head = kv_head * repeat; head < (kv_head + 1) * repeat; head++)
            for (int64_t at = 0; at < count; at += HIGH) {
                const Block b = {s, offsets[s], at, least(HIGH, count - at), prompt + at, prompt};
                forward_rows(row, &f, b.queries, q, head, &b, f.keys + place, f.values + place, out, log_sums);
            }
    }
}

/* Backward: of a group dk and dv [tokens, D]; keys_turned [D, tokens]; of a block of queries the rest. */
typedef struct {
    float *dk, *dv, *dq, *scores, *slopes;
    bf16 *keys_turned, *q_dims, *grad_dims, *q_pairs, *grad_pairs, *slopes_packed;
    float log_sums[SIDE], means[SIDE];
    int64_t turned; /* step between the rows of keys_turned */
} Backward;

/* Of up to HIGH keys and a block of queries: weights and slopes (gradients by the scores, scaled), rounded: [high, SIDE]. */
static void differentiate(const Row *row, const Backward *g, int64_t high, int64_t wide, const Block *b, const int64_t *key,
                          int64_t stretch_begin, int own, bf16 *weights, bf16 *slopes) {
    for (int64_t r = 0; r < high; r++)
        for (int64_t c = 0; c < wide; c++) {
            const int64_t i = r * SIDE + c * LANES;
            /* A query sees this key from the key's own place on, and until the window has passed it. */
            const int64_t from = own ? key[r] - b->at : 0;
            const int64_t until = row->window > 0 ? stretch_begin + key[r] + row->window - b->position : b->queries;
            const __mmask16 seen = between(c * LANES, from, least(until, b->queries));
            const __m512 log_sum = _mm512_loadu_ps(g->log_sums + c * LANES), mean = _mm512_loadu_ps(g->means + c * LANES);
            const __m512 scale = _mm512_set1_ps(row->scale);
            const __m512 below = _mm512_fmsub_ps(_mm512_loadu_ps(g->scores + i), scale, log_sum);
            const __m512 weight = _mm512_maskz_mov_ps(seen, exp16(_mm512_min_ps(below, _mm512_setzero_ps())));
            const __m512 slope = _mm512_sub_ps(_mm512_loadu_ps(g->slopes + i), mean);
            store16(weights + i, weight);
            store16(slopes + i, _mm512_mul_ps(_mm512_mul_ps(weight, slope), scale));
        }
}

/* Slopes of two keys side by side, [high, SIDE] -> [high / 2, SIDE, 2]; an odd last one meets zeros. */
static void interleave(int64_t high, int64_t wide, const bf16 *slopes, bf16 *out) {
    for (int64_t r = 0; r < high; r += 2)
        for (int64_t c = 0; c < wide; c++) {
            const __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(slopes + r * SIDE + c * LANES)));
            const __m512i b = r + 1 < high
                ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(slopes + (r + 1) * SIDE + c * LANES)))
                : _mm512_setzero_si512();
            _mm512_storeu_si512(out + r * SIDE + 2 * c * LANES, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
}

/* A block of queries and keys low .. end - 1 of one stretch, whose first token is `start` in the row and `place` in the
 * group: adds to dk and dv, and to dq [D, SIDE]. */
static void backward_stretch(const Row *row, const Backward *g, const Block *b, Rows k, Rows v, int64_t kv_head, int own,
                             int64_t start, int64_t place, int64_t low, int64_t end) {
    const int64_t size = row->size, wide = (b->queries + LANES - 1) / LANES, pairs = (b->queries + 1) / 2;
    bf16 weights[HIGH * SIDE], slopes[HIGH * SIDE];
    low = low / 2 * 2;
    for (int64_t key = low; key < end; key += HIGH) {
        const int64_t high = least(HIGH, end - key), names[HIGH] = {key, key + 1, key + 2, key + 3, key + 4, key + 5};
        memset(g->scores, 0, sizeof(float) * HIGH * SIDE);
        memset(g->slopes, 0, sizeof(float) * HIGH * SIDE);
        accumulate(high, wide, (const uint32_t *)row_of(k, start + key, kv_head), k.token / 2, (const __m512i *)g->q_dims,
                   WIDE, size / 2, g->scores, SIDE);
        accumulate(high, wide, (const uint32_t *)row_of(v, start + key, kv_head), v.token / 2, (const __m512i *)g->grad_dims,
                   WIDE, size / 2, g->slopes, SIDE);
        differentiate(row, g, high, wide, b, names, own ? b->prompt : 0, own, weights, slopes);
        interleave(high, wide, slopes, g->slopes_packed + (key - low) * SIDE);
        accumulate_heads(high, weights, SIDE, g->grad_pairs, size, pairs, g->dv + (place + key) * size);
        accumulate_heads(high, slopes, SIDE, g->q_pairs, size, pairs, g->dk + (place + key) * size);
    }
    for (int64_t d = 0; d < size; d += HIGH)
        accumulate(least(HIGH, size - d), wide, (const uint32_t *)(g->keys_turned + d * g->turned + place + low),
                   g->turned / 2, (const __m512i *)g->slopes_packed, WIDE, (end - low + 1) / 2, g->dq + d * SIDE, SIDE);
}

/* One block of queries of one head: its share of dk and dv, and its dq. */
static void backward_block(const Row *row, Backward *g, const Block *b, int64_t head, Rows q, Rows k, Rows v, Rows out,
                           Rows grad, const float *log_sums, int64_t prompt_start, int64_t place, RowsOut dq) {
    const int64_t size = row->size, kv_head = head / (row->heads / row->kv_heads), token = b->start + b->at;
    pack_dimensions(q, token, head, b->queries, size, g->q_dims);
    pack_dimensions(grad, token, head, b->queries, size, g->grad_dims);
    pack_tokens(q, token, head, b->queries, size, g->q_pairs);
    pack_tokens(grad, token, head, b->queries, size, g->grad_pairs);
    for (int64_t i = 0; i < SIDE; i++) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t d = 0; i < b->queries && d < size; d += LANES)
            sum = _mm512_fmadd_ps(load16(row_of(out, token + i, head) + d), load16(row_of(grad, token + i, head) + d), sum);
        g->means[i] = _mm512_reduce_add_ps(sum);
        g->log_sums[i] = i < b->queries ? log_sums[head * row->tokens + token + i] : 0;
    }
    memset(g->dq, 0, sizeof(float) * size * SIDE);
    if (b->prompt)
        backward_stretch(row, g, b, k, v, kv_head, 0, prompt_start, 0, lowest(row, b->position, 0), b->prompt);
    backward_stretch(row, g, b, k, v, kv_head, 1, b->start, place, lowest(row, b->position, b->prompt), b->at + b->queries);
    const __m512i column = _mm512_mullo_epi32(_mm512_set1_epi32(SIDE),
                                              _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    for (int64_t i = 0; i < b->queries; i++)
        for (int64_t d = 0; d < size; d += LANES)
            store16(dq.at + (token + i) * dq.token + head * dq.head + d, _mm512_i32gather_ps(column, g->dq + d * SIDE + i, 4));
}

/* One key/value head of one group. */
static void backward_group(const Row *row, int64_t group, int64_t kv_head, Rows q, Rows k, Rows v, Rows out, Rows grad,
                           const float *log_sums, RowsOut dq, RowsOut dk, RowsOut dv, char *scratch) {
    const int64_t size = row->size, repeat = row->heads / row->kv_heads;
    const int64_t first = row->first[group], end = row->first[group + 1], *offsets = row->offsets;
    int64_t tokens, seen;
    longest(row, &tokens, &seen);
    const int64_t block = 2 * SIDE * size;
    Backward g = {take(&scratch, 4 * tokens * size), take(&scratch, 4 * tokens * size), take(&scratch, 4 * SIDE * size),
                  take(&scratch, 4 * HIGH * SIDE), take(&scratch, 4 * HIGH * SIDE), take(&scratch, 2 * tokens * size),
                  take(&scratch, block), take(&scratch, block), take(&scratch, block), take(&scratch, block),
                  take(&scratch, 2 * SIDE * seen), {0}, {0}, tokens};
    memset(g.dk, 0, sizeof(float) * tokens * size);
    memset(g.dv, 0, sizeof(float) * tokens * size);
    for (int64_t s = first; s < end; s++) {
        const int64_t place = place_of(row, group, s), count = offsets[s + 1] - offsets[s];
        for (int64_t t = 0; t < up(count, 2); t++)
            for (int64_t d = 0; d < size; d++)
                g.keys_turned[d * tokens + place + t] = t < count ? row_of(k, offsets[s] + t, kv_head)[d] : 0;
    }
    for (int64_t s = first; s < end; s++) {
        const int64_t place = place_of(row, group, s), count = offsets[s + 1] - offsets[s];
        const int64_t prompt = s == first ? 0 : offsets[first + 1] - offsets[first];
        for (int64_t head = kv_head * repeat; head < (kv_head + 1) * repeat; head++)
            for (int64_t at = 0; at < count; at += SIDE) {
                const Block b = {s, offsets[s], at, least(SIDE, count - at), prompt + at, prompt};
                backward_block(row, &g, &b, head, q, k, v, out, grad, log_sums, offsets[first], place, dq);
            }
    }
    for (int64_t s = first; s < end; s++)
        for (int64_t t = 0, place = place_of(row, group, s); t < offsets[s + 1] - offsets[s]; t++)
            for (int64_t d = 0; d < size; d += LANES) {
                const int64_t from = (place + t) * size + d, token = offsets[s] + t;
                store16(dk.at + token * dk.token + kv_head * dk.head + d, _mm512_loadu_ps(g.dk + from));
                store16(dv.at + token * dv.token + kv_head * dv.head + d, _mm512_loadu_ps(g.dv + from));
            }
}

/* Bytes of scratch that a thread needs, forward or backward. */
int64_t row_scratch_bytes(const Row *row) {
    int64_t tokens, seen;
    longest(row, &tokens, &seen);
    return 10 * tokens * row->size + 2 * SIDE * seen + 12 * SIDE * row->size + 8 * HIGH * SIDE + 4 * HIGH * row->size + 2048;
}

/* out [N, H, D] and log_sums [H, N] from q, k and v. */
void row_attention(const Row *row, const Rows *q, const Rows *k, const Rows *v, const RowsOut *out, float *log_sums) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t t = 0; t < row->groups * row->kv_heads; t++)
        forward_group(row, t / row->kv_heads, t % row->kv_heads, *q, *k, *v, *out, log_sums,
                      row->scratch + omp_get_thread_num() * row->scratch_bytes);
}

/* The gradients by q, k and v, from the gradient by out. */
void row_attention_backward(const Row *row, const Rows *q, const Rows *k, const Rows *v, const Rows *out, const Rows *grad,
                            const float *log_sums, const RowsOut *dq, const RowsOut *dk, const RowsOut *dv) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t t = 0; t < row->groups * row->kv_heads; t++)
        backward_group(row, t / row->kv_heads, t % row->kv_heads, *q, *k, *v, *out, *grad, log_sums, *dq, *dk, *dv,
                       row->scratch + omp_get_thread_num() * row->scratch_bytes);
}
