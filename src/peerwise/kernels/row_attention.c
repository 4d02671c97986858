/* Attention over a packed row: a few queries at a time, their scores with all keys that they see in one piece. */
#include "row_attention.h"

/* Forward: keys [blocks, D / 2, SIDE, 2] and values [tokens / 2, D, 2] of each segment from `place` on. */
typedef struct {
    bf16 *keys, *values, *weights;
    float *scores, *sums;
} Forward;

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
                const Block b = {offsets[s], at, least(HIGH, count - at), prompt + at, prompt};
                forward_rows(row, &f, b.queries, q, head, &b, f.keys + place, f.values + place, out, log_sums);
            }
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
