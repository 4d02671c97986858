/* Attention of one new token a row over a prompt that many rows share and the row's own answer, in bfloat16 on a processor
 * with AVX-512 BF16.
 *
 * Knows no models and no Python: pointers and sizes in, results in place. Nothing is checked here; library.py does that.
 *
 * Keys and values lie as the dot-product instruction wants them, so that nothing is re-ordered while decoding:
 *   keys    [place, K, room / 16, D / 2, 16, 2]   16 tokens side by side, two dimensions together
 *   values  [place, K, room / 2, D, 2]            two tokens together
 * Shapes: n rows, H query heads, K key/value heads, R = H / K, D head size (a multiple of 16), room a multiple of 16.
 */
#include <math.h>
#include <omp.h>

#include "bf16.h"

#define BLOCK LANES /* tokens of a block of keys */
#define HEADS 4     /* query heads that share a pass over keys or values */

/* What one row sees of one stretch of keys and values: tokens first .. end - 1 of it. */
typedef struct {
    const bf16 *k, *v;
    int64_t first, end;
} Stretch;

INLINE int64_t blocks(const Stretch *s) { return s->end > s->first ? (s->end - 1) / BLOCK - s->first / BLOCK + 1 : 0; }

/* Scores of `heads` queries q [heads, D] with `wide` blocks from block `first` of a stretch on: out [heads, width]. */
INLINE void score_blocks(const int heads, const int wide, const bf16 *q, int64_t size, const Stretch *s, int64_t first,
                         float scale, float *out, int64_t width) {
    const int64_t half = size / 2;
    const uint32_t *pairs = (const uint32_t *)q;
    const __m512i *k = (const __m512i *)(s->k + first * BLOCK * size);
    __m512 sum[HEADS][WIDE];
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < wide; c++) sum[h][c] = _mm512_setzero_ps();
    for (int64_t d = 0; d < half; d++) {
        __m512bh key[WIDE];
        for (int c = 0; c < wide; c++) key[c] = (__m512bh)_mm512_loadu_si512(k + c * half + d);
        for (int h = 0; h < heads; h++) {
            const __m512bh query = pair(pairs[h * half + d]);
            for (int c = 0; c < wide; c++) sum[h][c] = _mm512_dpbf16_ps(sum[h][c], query, key[c]);
        }
    }
    for (int c = 0; c < wide; c++) {
        const __mmask16 seen = between((first + c) * BLOCK, s->first, s->end);
        for (int h = 0; h < heads; h++) {
            const __m512 scaled = _mm512_mul_ps(sum[h][c], _mm512_set1_ps(scale));
            _mm512_storeu_ps(out + h * width + c * BLOCK, _mm512_mask_blend_ps(seen, _mm512_set1_ps(-INFINITY), scaled));
        }
    }
}

/* The same for all blocks of a stretch, some at one time: the sums of one block would wait for each other. */
INLINE void score(const int heads, const bf16 *q, int64_t size, const Stretch *s, float scale, float *out, int64_t width) {
    const int64_t start = s->first / BLOCK, count = blocks(s);
    for (int64_t b = 0; b < count; b += WIDE, out += WIDE * BLOCK)
        switch (count - b) {
            case 1: score_blocks(heads, 1, q, size, s, start + b, scale, out, width); break;
            case 2: score_blocks(heads, 2, q, size, s, start + b, scale, out, width); break;
            case 3: score_blocks(heads, 3, q, size, s, start + b, scale, out, width); break;
            default: score_blocks(heads, WIDE, q, size, s, start + b, scale, out, width);
        }
}

/* Add weights @ values of a stretch to out [heads, D] float32, 64 dimensions (fewer at the end) at a time. */
INLINE void gather(const int heads, const int lanes, const bf16 *weights, int64_t width, int64_t size, int64_t at,
                   const Stretch *s, float *out) {
    const int64_t start = s->first / BLOCK * BLOCK, count = blocks(s) * BLOCK / 2;
    __m512 sum[HEADS][4];
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < lanes; i++) sum[h][i] = _mm512_loadu_ps(out + h * size + at + i * 16);
    for (int64_t p = 0; p < count; p++) {
        const bf16 *v = s->v + (start + 2 * p) * size + 2 * at;
        __m512bh value[4];
        for (int i = 0; i < lanes; i++) value[i] = (__m512bh)_mm512_loadu_si512(v + i * 32);
        for (int h = 0; h < heads; h++) {
            const __m512bh w = pair(((const uint32_t *)(weights + h * width))[p]);
            for (int i = 0; i < lanes; i++) sum[h][i] = _mm512_dpbf16_ps(sum[h][i], w, value[i]);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < lanes; i++) _mm512_storeu_ps(out + h * size + at + i * 16, sum[h][i]);
}

/* `heads` queries of one row over its two stretches: q [heads, D] -> out [heads, D]. */
INLINE void attend_heads(const int heads, const bf16 *q, int64_t size, const Stretch *stretches, float scale, float softcap,
                         float *scratch, bf16 *out) {
    const int64_t shared = blocks(&stretches[0]) * BLOCK, width = shared + blocks(&stretches[1]) * BLOCK;
    float *scores = scratch, *sums = scores + heads * width;
    bf16 *weights = (bf16 *)(sums + heads * size);
    score(heads, q, size, &stretches[0], scale, scores, width);
    score(heads, q, size, &stretches[1], scale, scores + shared, width);
    float totals[HEADS];
    for (int h = 0; h < heads; h++) {
        float *row = scores + h * width;
        if (softcap > 0)
            for (int64_t t = 0; t < width; t++)
                if (row[t] > -INFINITY) row[t] = softcap * tanhf(row[t] / softcap);
        __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
        for (int64_t t = 0; t < width; t += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(row + t));
        most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
        for (int64_t t = 0; t < width; t += 16) {
            const __m512 weight = exp16(_mm512_sub_ps(_mm512_loadu_ps(row + t), most));
            total = _mm512_add_ps(total, weight);
            store16(weights + h * width + t, weight);
        }
        totals[h] = _mm512_reduce_add_ps(total);
        for (int64_t d = 0; d < size; d += 16) _mm512_storeu_ps(sums + h * size + d, _mm512_setzero_ps());
    }
    for (int part = 0; part < 2; part++) {
        const bf16 *columns = weights + (part ? shared : 0);
        int64_t at = 0;
        for (; at + 64 <= size; at += 64) gather(heads, 4, columns, width, size, at, &stretches[part], sums);
        for (; at < size; at += 16) gather(heads, 1, columns, width, size, at, &stretches[part], sums);
    }
    for (int h = 0; h < heads; h++)
        for (int64_t d = 0; d < size; d += 16)
            store16(out + h * size + d, _mm512_div_ps(_mm512_loadu_ps(sums + h * size + d), _mm512_set1_ps(totals[h])));
}

/* Floats of scratch that a thread needs for stretches of together `tokens` tokens (whole blocks). */
int64_t scratch_floats(int64_t tokens, int64_t size) { return HEADS * (tokens + size + (tokens + 1) / 2) + 16; }

INLINE void keep(const bf16 *k, const bf16 *v, int64_t kv_heads, int64_t size, int64_t k_step, int64_t v_step, int64_t room,
                 int64_t token, bf16 *keys, bf16 *values) {
    for (int64_t head = 0; head < kv_heads; head++) {
        uint32_t *block = (uint32_t *)(keys + (head * room + token / BLOCK * BLOCK) * size);
        for (int64_t d = 0; d < size / 2; d++) block[d * BLOCK + token % BLOCK] = ((const uint32_t *)(k + head * k_step))[d];
        bf16 *two = values + (head * room + token / 2 * 2) * size;
        for (int64_t d = 0; d < size; d++) two[2 * d + token % 2] = v[head * v_step + d];
    }
}

/* Keep the tokens of a prompt at its place: k and v with the given strides between tokens and between heads. */
void keep_tokens(int64_t tokens, int64_t kv_heads, int64_t size, const bf16 *k, int64_t k_stride, int64_t k_step,
                 const bf16 *v, int64_t v_stride, int64_t v_step, int64_t room, bf16 *keys, bf16 *values) {
#pragma omp parallel for schedule(static, BLOCK)
    for (int64_t token = 0; token < tokens; token++)
        keep(k + token * k_stride, v + token * v_stride, kv_heads, size, k_step, v_step, room, token, keys, values);
}

/* Keep each row's key and value as token lengths[row] of its answer, then let it attend.
 *
 * q [n, H, D], k and v [n, K, D] with the given strides between rows; groups [n] and slots [n] say where a row's prompt
 * and answer lie; prompt_lengths [n]; lengths [n] tokens of the answer before this one. window 0 is none. Rows of one
 * answer may be several tokens of it: all keys are kept before any row looks. scratch [threads, scratch_size]; out [n, H, D] without gaps. */
void decode_attention(int64_t n, int64_t heads, int64_t kv_heads, int64_t size, const bf16 *q, const bf16 *k, const bf16 *v,
                      int64_t q_stride, int64_t k_stride, int64_t v_stride, const int64_t *groups, const int64_t *slots,
                      const int64_t *prompt_lengths, const int64_t *lengths, const bf16 *prompt_keys,
                      const bf16 *prompt_values, int64_t prompt_room, bf16 *keys, bf16 *values, int64_t room, float scale,
                      float softcap, int64_t window, float *scratch, int64_t scratch_size, int64_t threads,
                      bf16 *out) {
    const int64_t repeat = heads / kv_heads, prompt_place = kv_heads * prompt_room * size, place = kv_heads * room * size;
#pragma omp parallel num_threads(threads)
    {
        float *mine = scratch + omp_get_thread_num() * scratch_size;
#pragma omp for
        for (int64_t row = 0; row < n; row++)
            keep(k + row * k_stride, v + row * v_stride, kv_heads, size, size, size, room, lengths[row],
                 keys + slots[row] * place, values + slots[row] * place);
        /* One key/value head of all rows after the other: rows of a group then read the same prompt from the cache. */
#pragma omp for schedule(dynamic, 8)
        for (int64_t task = 0; task < kv_heads * n; task++) {
            const int64_t head = task / n, row = task % n, position = prompt_lengths[row] + lengths[row];
            const int64_t lowest = window > 0 && position >= window ? position - window + 1 : 0;
            const int64_t prompt_at = groups[row] * prompt_place + head * prompt_room * size;
            const int64_t own_at = slots[row] * place + head * room * size;
            const Stretch stretches[2] = {
                {prompt_keys + prompt_at, prompt_values + prompt_at, lowest, prompt_lengths[row]},
                {keys + own_at, values + own_at, lowest > prompt_lengths[row] ? lowest - prompt_lengths[row] : 0,
                 lengths[row] + 1},
            };
            for (int64_t h = 0; h < repeat; h += HEADS) {
                const int64_t first = head * repeat + h;
                const bf16 *query = q + row * q_stride + first * size;
                bf16 *to = out + (row * heads + first) * size;
                switch (repeat - h) {
                    case 1: attend_heads(1, query, size, stretches, scale, softcap, mine, to); break;
                    case 2: attend_heads(2, query, size, stretches, scale, softcap, mine, to); break;
                    case 3: attend_heads(3, query, size, stretches, scale, softcap, mine, to); break;
                    default: attend_heads(HEADS, query, size, stretches, scale, softcap, mine, to);
                }
            }
        }
    }
}
