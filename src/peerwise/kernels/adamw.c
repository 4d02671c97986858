/* AdamW on float32 numbers whose two moments are kept in 8 bits: a code for one of 256 levels each, and a float32 scale for
 * every block of 256 (https://arxiv.org/abs/2110.02861). For a processor with AVX-512.
 *
 * Nothing is checked here; library.py does that.
 */
#include <math.h>

#include "bf16.h"

#define BLOCK 256

/* The levels, ascending, and how the nearest one is found: the upper 16 bits of a number, the sign apart, counted from low
 * and held below size, say where in `firsts` it stands how many edges (halfway between neighbouring levels) lie below all
 * numbers of these bits; at most one edge lies among them. Negative numbers have the second half of `firsts`. */
typedef struct {
    const float *levels, *edges;
    const uint8_t *firsts;
    int32_t low, size;
} code_table;

/* What 16 codes stand for. */
INLINE __m512 decoded(const uint8_t *codes, __mmask16 lanes, const code_table *table, float scale) {
    const __m512i code = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, codes));
    return _mm512_mul_ps(_mm512_i32gather_ps(code, table->levels, 4), _mm512_set1_ps(scale));
}

/* The code of the level nearest to each x. */
INLINE __m128i nearest(__m512 x, const code_table *table) {
    const __m512i bits = _mm512_castps_si512(x);
    __m512i place = _mm512_srli_epi32(_mm512_slli_epi32(bits, 1), 17);
    place = _mm512_sub_epi32(_mm512_max_epi32(place, _mm512_set1_epi32(table->low)), _mm512_set1_epi32(table->low));
    place = _mm512_min_epi32(place, _mm512_set1_epi32(table->size - 1));
    place = _mm512_mask_add_epi32(place, _mm512_movepi32_mask(bits), place, _mm512_set1_epi32(table->size));
    const __m512i first = _mm512_and_epi32(_mm512_i32gather_epi32(place, table->firsts, 1), _mm512_set1_epi32(0xff));
    const __mmask16 above = _mm512_cmp_ps_mask(_mm512_i32gather_ps(first, table->edges, 4), x, _CMP_LT_OQ);
    return _mm512_cvtepi32_epi8(_mm512_mask_add_epi32(first, above, first, _mm512_set1_epi32(1)));
}

/* Round a block of `size` moments, whose greatest magnitude is `most`, to codes and their scale. */
static void keep(int64_t size, const float *moments, float most, const code_table *table, uint8_t *codes, float *scale) {
    *scale = most;
    const __m512 factor = _mm512_set1_ps(most > 0 ? 1.0f / most : 0);
    for (int64_t i = 0; i < size; i += LANES) {
        const __mmask16 lanes = first_lanes(size - i);
        _mm_mask_storeu_epi8(codes + i, lanes, nearest(_mm512_mul_ps(_mm512_loadu_ps(moments + i), factor), table));
    }
}

/* One step: values and gradient [count], codes [count] and scales [blocks] of the mean and of the mean of squares.
 * With m and v the new moments:
 * value = value * shrink - rate * m / (sqrt(v) / correction + eps), where rate and correction undo the moments' start at 0. */
void adamw_in_8_bits(int64_t count, float *values, const float *gradient, uint8_t *mean_codes, uint8_t *square_codes,
                     float *mean_scales, float *square_scales, const code_table *of_means, const code_table *of_squares, float beta1,
                     float beta2, float eps, float rate, float correction, float shrink) {
#pragma omp parallel for
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = count - start < BLOCK ? count - start : BLOCK, block = start / BLOCK;
        float means[BLOCK], squares[BLOCK];
        __m512 most_mean = _mm512_setzero_ps(), most_square = _mm512_setzero_ps();
        for (int64_t i = 0; i < size; i += LANES) {
            const __mmask16 lanes = first_lanes(size - i);
            const int64_t at = start + i;
            const __m512 g = _mm512_maskz_loadu_ps(lanes, gradient + at), value = _mm512_maskz_loadu_ps(lanes, values + at);
            __m512 m = decoded(mean_codes + at, lanes, of_means, mean_scales[block]);
            __m512 v = decoded(square_codes + at, lanes, of_squares, square_scales[block]);
            m = _mm512_fmadd_ps(g, _mm512_set1_ps(1 - beta1), _mm512_mul_ps(m, _mm512_set1_ps(beta1)));
            v = _mm512_fmadd_ps(_mm512_mul_ps(g, g), _mm512_set1_ps(1 - beta2), _mm512_mul_ps(v, _mm512_set1_ps(beta2)));
            _mm512_storeu_ps(means + i, m);
            _mm512_storeu_ps(squares + i, v);
            most_mean = _mm512_mask_max_ps(most_mean, lanes, most_mean, _mm512_abs_ps(m));
            most_square = _mm512_mask_max_ps(most_square, lanes, most_square, v);
            const __m512 spread = _mm512_fmadd_ps(_mm512_sqrt_ps(v), _mm512_set1_ps(1 / correction), _mm512_set1_ps(eps));
            const __m512 move = _mm512_mul_ps(_mm512_div_ps(m, spread), _mm512_set1_ps(rate));
            _mm512_mask_storeu_ps(values + at, lanes, _mm512_fmsub_ps(value, _mm512_set1_ps(shrink), move));
        }
        keep(size, means, _mm512_reduce_max_ps(most_mean), of_means, mean_codes + start, mean_scales + block);
        keep(size, squares, _mm512_reduce_max_ps(most_square), of_squares, square_codes + start, square_scales + block);
    }
}
