/* Linear layers in bfloat16 on a processor with AVX-512 BF16: [rows, size] with a weight [columns, size] that has been put
 * into the order in which it is read.
 *
 * A decode step has as many rows as answers, too few to be multiplied at the rate of large matrices by a library that
 * treats both factors alike: here the rows stay in the nearest cache, and the weight flows by once, the next piece of it
 * fetched from memory while the last is multiplied. The thousands of rows of training do as well. A row's result does not
 * depend on what other rows there are.
 *
 * Packed weights: [panels, size / 2, 64, 2], 64 columns to a panel, two inputs of a column together; what a last panel has
 * too many is computed from whatever is there and not written. Sizes are even, columns multiples of 16. Nothing is checked
 * here; library.py does that.
 */
#include <omp.h>

#include "bf16.h"

#define DEPTH 1024 /* pairs of inputs after which the same piece of a panel is read again for the next rows: 256 kB */
#define TALL 252   /* rows of one task at most, a multiple of HIGH: their sums stay on its stack between pieces */

typedef struct {
    int64_t pairs, columns;
    const uint32_t *x;      /* [rows, pairs] */
    const __m512i *weights; /* [panels, pairs, WIDE] */
    const bf16 *bias;       /* [columns] or null */
    const bf16 *added;      /* [rows, columns] or null */
    int64_t gated;
    bf16 *out; /* [rows, columns], or half the columns when gated */
} Product;

/* Write a row's finished sums of a panel. Every step rounds to bfloat16, as a model's own modules do. */
INLINE void finish(const Product *p, int64_t panel, int64_t row, const __m512 *sum) {
    if (p->gated) {
        bf16 *out = p->out + row * p->columns / 2 + panel * WIDE / 2 * LANES;
        for (int c = 0; c < WIDE / 2; c++) {
            const __m512 gate = rounded(sum[c]), value = rounded(sum[c + WIDE / 2]);
            store16(out + c * LANES, _mm512_mul_ps(rounded(_mm512_mul_ps(gate, sigmoid16(gate))), value));
        }
        return;
    }
    const int64_t at = row * p->columns + panel * WIDE * LANES;
    for (int c = 0; c < WIDE && (panel * WIDE + c) * LANES < p->columns; c++) {
        const __m512 own = p->added ? _mm512_add_ps(load16(p->added + at + c * LANES), rounded(sum[c])) : sum[c];
        store16(p->out + at + c * LANES, own);
    }
}

INLINE __m512 bias16(const Product *p, int64_t column) {
    return p->bias && column < p->columns ? load16(p->bias + column) : _mm512_setzero_ps();
}

/* Pairs first .. end - 1 of `high` rows and one panel. Between pieces the sums lie in partial [high, WIDE, LANES];
 * `ahead` is the share of these rows in fetching the piece that is read next. */
INLINE void tile(const int high, const Product *p, int64_t panel, int64_t row, int64_t first, int64_t end, const char *ahead,
                 float *partial) {
    const __m512i *weights = p->weights + panel * p->pairs * WIDE;
    const uint32_t *x = p->x + row * p->pairs;
    __m512 sum[HIGH][WIDE];
    for (int r = 0; r < high; r++)
        for (int c = 0; c < WIDE; c++)
            sum[r][c] = first ? _mm512_loadu_ps(partial + (r * WIDE + c) * LANES) : bias16(p, (panel * WIDE + c) * LANES);
    multiply(high, WIDE, x + first, p->pairs, weights + first * WIDE, WIDE, end - first, ahead, sum);
    for (int r = 0; r < high; r++)
        if (end == p->pairs) {
            finish(p, panel, row + r, sum[r]);
        } else {
            for (int c = 0; c < WIDE; c++) _mm512_storeu_ps(partial + (r * WIDE + c) * LANES, sum[r][c]);
        }
}

/* Rows from .. to - 1, at most TALL, and one panel. */
static void task(const Product *p, int64_t panel, int64_t from, int64_t to) {
    float partial[TALL * WIDE * LANES];
    for (int64_t first = 0; first < p->pairs; first += DEPTH) {
        const int64_t end = p->pairs < first + DEPTH ? p->pairs : first + DEPTH, lines = (end - first) * WIDE;
        const char *next = (const char *)(p->weights + (panel * p->pairs + end) * WIDE);
        for (int64_t row = from; row < to; row += HIGH) {
            const char *ahead = next + lines * (row - from) / (to - from) * sizeof(__m512i);
            float *kept = partial + (row - from) * WIDE * LANES;
            switch (to - row) {
                case 1: tile(1, p, panel, row, first, end, ahead, kept); break;
                case 2: tile(2, p, panel, row, first, end, ahead, kept); break;
                case 3: tile(3, p, panel, row, first, end, ahead, kept); break;
                case 4: tile(4, p, panel, row, first, end, ahead, kept); break;
                case 5: tile(5, p, panel, row, first, end, ahead, kept); break;
                default: tile(HIGH, p, panel, row, first, end, ahead, kept);
            }
        }
    }
}

/* out = x @ weight.T + bias, then plus added; or, gated, silu of a panel's first 32 columns times its last 32. */
void product(int64_t rows, int64_t size, int64_t columns, const bf16 *x, const bf16 *weights, const bf16 *bias,
             const bf16 *added, int64_t gated, bf16 *out) {
    const Product p = {size / 2, columns, (const uint32_t *)x, (const __m512i *)weights, bias, added, gated, out};
    const int64_t panels = (columns + WIDE * LANES - 1) / (WIDE * LANES), blocks = (rows + HIGH - 1) / HIGH;
    /* Few panels share badly among threads: their rows are then divided too, until each thread has about eight tasks. */
    const int64_t wanted = (8 * omp_get_max_threads() + panels - 1) / panels, least = (rows + TALL - 1) / TALL;
    const int64_t most = wanted < blocks ? wanted : blocks, parts = most > least ? most : least;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < panels * parts; t++) {
        const int64_t part = t % parts, to = blocks * (part + 1) / parts * HIGH;
        task(&p, t / parts, blocks * part / parts * HIGH, to < rows ? to : rows);
    }
}

/* Put a weight [columns, size] into packed registers from `first` on: side by side, or, with `halves`, two and a gap of
 * two, so that gates and the values they belong to meet in one panel. */
void pack(int64_t columns, int64_t size, const bf16 *weight, int64_t first, int64_t halves, bf16 *packed) {
    const int64_t pairs = size / 2;
#pragma omp parallel for
    for (int64_t block = 0; block < columns / LANES; block++) {
        const int64_t place = first + (halves ? block / 2 * WIDE + block % 2 : block);
        const uint32_t *from = (const uint32_t *)weight + block * LANES * pairs;
        uint32_t *to = (uint32_t *)packed + (place / WIDE * pairs * WIDE + place % WIDE) * LANES;
        for (int64_t i = 0; i < pairs; i++)
            for (int lane = 0; lane < LANES; lane++) to[i * WIDE * LANES + lane] = from[lane * pairs + i];
    }
}

/* Pack a weight [size, columns], that is, the transposed of what `pack` takes. */
void pack_turned(int64_t columns, int64_t size, const bf16 *weight, bf16 *packed) {
    const int64_t pairs = size / 2;
#pragma omp parallel for
    for (int64_t block = 0; block < columns / LANES; block++) {
        bf16 *to = packed + (block / WIDE * pairs * WIDE + block % WIDE) * 2 * LANES;
        for (int64_t i = 0; i < pairs; i++) {
            const bf16 *from = weight + 2 * i * columns + block * LANES;
            const __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
            const __m512i second = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(from + columns)));
            _mm512_storeu_si512(to + i * WIDE * 2 * LANES, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
    }
}
