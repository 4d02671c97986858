/* Attention over a packed row of groups and its gradients, in bfloat16 on a processor with AVX-512 BF16: each answer sees
 * its group's prompt and itself, a prompt sees itself, nothing else.
 *
 * The row consists of segments, the tokens from one offset to the next: of each group first its prompt, then its answers.
 * A group's keys are worked on once for each key/value head, by one thread. Scores never leave the cache; the backward
 * pass computes them again from the logarithm of each query's sum. Nothing is checked here; models/row_attention.py does.
 *
 * This file is what both directions need; each has a file of its own.
 *
 * Products read one factor by rows, two numbers of a row together, and the other packed: [pairs, columns, 2].
 * Shapes: N tokens of the row, H query heads, K key/value heads, R = H / K, D head size (a multiple of 32).
 */
#pragma once
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

/* `queries` tokens of the segment that begins at `start`, from place `at` of it on; the first is at position `position`.
 * They see `prompt` tokens of the prompt, none where they are its own, and their segment up to themselves. */
typedef struct {
    int64_t start, at, queries, position, prompt;
} Block;

/* The first key of a stretch that begins at position `begin` that a query at `position` may see. */
INLINE int64_t lowest(const Row *row, int64_t position, int64_t begin) {
    return row->window > 0 ? most(0, position - row->window + 1 - begin) : 0;
}

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

INLINE void *take(char **from, int64_t bytes) {
    void *taken = *from;
    *from += up(bytes, 64);
    return taken;
}
