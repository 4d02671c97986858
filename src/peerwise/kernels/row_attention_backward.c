/* The gradients of attention over a packed row: a block of queries meets a few keys at a time.
 *
 * With S the scaled scores, P = exp(S - log sum) and D each query's sum over out * gradient, all of them transposed here:
 * of_v = P gradient, of_S = P (v gradient - D), of_k = of_S q, of_q = of_S k.
 */
#include "row_attention.h"

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
                const Block b = {offsets[s], at, least(SIDE, count - at), prompt + at, prompt};
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

/* The gradients by q, k and v, from the gradient by out. */
void row_attention_backward(const Row *row, const Rows *q, const Rows *k, const Rows *v, const Rows *out, const Rows *grad,
                            const float *log_sums, const RowsOut *dq, const RowsOut *dk, const RowsOut *dv) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t t = 0; t < row->groups * row->kv_heads; t++)
        backward_group(row, t / row->kv_heads, t % row->kv_heads, *q, *k, *v, *out, *grad, log_sums, *dq, *dk, *dv,
                       row->scratch + omp_get_thread_num() * row->scratch_bytes);
}
