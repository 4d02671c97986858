/* Log-probs and entropies from a tile of logits, and the gradient by it, each in one pass over the tile; in bfloat16 on a
 * processor with AVX-512 BF16, computed in float32.
 *
 * A row's sums over the vocabulary grow tile by tile. Nothing is checked here; library.py does that.
 */
#include <math.h>

#include "bf16.h"

/* 16 logits from i on, tempered; what is beyond the row is -inf. */
INLINE __m512 tempered(const bf16 *row, int64_t i, __mmask16 lanes, float factor) {
    const __m512 x = widen(_mm256_maskz_loadu_epi16(lanes, row + i));
    return _mm512_mask_blend_ps(lanes, _mm512_set1_ps(-INFINITY), _mm512_mul_ps(x, _mm512_set1_ps(factor)));
}

/* Add a tile to the sums of each row: with l the logits met so far, top = max l, total = sum exp(l - top), moment =
 * sum exp(l - top) (l - top), and chosen = l at the target, counted from the tile's first column, if it is in the tile.
 * Before the first tile top is -inf and the others are 0. */
void logits_sums(int64_t rows, int64_t columns, const bf16 *logits, float factor, const int64_t *targets, int64_t start,
                 float *tops, float *totals, float *moments, float *chosen) {
#pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *row = logits + r * columns;
        __m512 highest = _mm512_set1_ps(tops[r]), total = _mm512_setzero_ps(), moment = _mm512_setzero_ps();
        for (int64_t i = 0; i < columns; i += LANES) highest = _mm512_max_ps(highest, tempered(row, i, first_lanes(columns - i), factor));
        const float top = _mm512_reduce_max_ps(highest);
        for (int64_t i = 0; i < columns; i += LANES) {
            const __mmask16 lanes = first_lanes(columns - i);
            const __m512 below = _mm512_sub_ps(tempered(row, i, lanes, factor), _mm512_set1_ps(top)), weight = exp16(below);
            total = _mm512_add_ps(total, weight);
            moment = _mm512_mask3_fmadd_ps(weight, below, moment, lanes);
        }
        const float shift = totals[r] > 0 ? tops[r] - top : 0, rescale = expf(shift);
        moments[r] = (moments[r] + totals[r] * shift) * rescale + _mm512_reduce_add_ps(moment);
        totals[r] = totals[r] * rescale + _mm512_reduce_add_ps(total);
        tops[r] = top;
        const int64_t target = targets[r] - start;
        if (target >= 0 && target < columns) chosen[r] = _mm512_cvtss_f32(tempered(row, target, 1, factor));
    }
}

/* Overwrite a tile of logits by the gradient by it, given the log-sums of the rows and the gradients by their log-probs
 * and entropies, which are already divided by the temperature (of_entropies and entropies may be null):
 * d log p(y) / d l = onehot(y) - p;  d H / d l = -p (ln p + H). */
void logits_gradient(int64_t rows, int64_t columns, bf16 *logits, float factor, const int64_t *targets, int64_t start,
                     const float *log_sums, const float *of_logprobs, const float *of_entropies, const float *entropies) {
#pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        bf16 *row = logits + r * columns;
        const float by = of_entropies ? of_entropies[r] : 0, entropy = by != 0 ? entropies[r] : 0;
        const int64_t target = targets[r] - start;
        for (int64_t i = 0; i < columns; i += LANES) {
            const __mmask16 lanes = first_lanes(columns - i);
            const __m512 lnp = _mm512_sub_ps(tempered(row, i, lanes, factor), _mm512_set1_ps(log_sums[r]));
            const __m512 p = exp16(_mm512_min_ps(lnp, _mm512_setzero_ps()));
            __m512 slope = _mm512_set1_ps(of_logprobs[r]);
            if (by != 0) slope = _mm512_fmadd_ps(_mm512_add_ps(lnp, _mm512_set1_ps(entropy)), _mm512_set1_ps(by), slope);
            __m512 grad = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(p, slope));
            if (target >= i && target < i + LANES)
                grad = _mm512_mask_add_ps(grad, (__mmask16)(1u << (target - i)), grad, _mm512_set1_ps(of_logprobs[r]));
            _mm256_mask_storeu_epi16(row + i, lanes, (__m256i)_mm512_cvtneps_pbh(grad));
        }
    }
}
