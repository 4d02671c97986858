/* Vectors of 16 bfloat16 numbers, computed in float32, and the product that all others are made of: what the C files
 * have in common. */
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t bf16;
#define INLINE static inline __attribute__((always_inline))

INLINE __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
INLINE __m512 load16(const bf16 *x) { return widen(_mm256_loadu_si256((const __m256i *)x)); }
INLINE void store16(bf16 *x, __m512 v) { _mm256_storeu_si256((__m256i *)x, (__m256i)_mm512_cvtneps_pbh(v)); }
INLINE __m512 rounded(__m512 v) { return widen((__m256i)_mm512_cvtneps_pbh(v)); }
INLINE __m512bh pair(uint32_t x) { return (__m512bh)_mm512_set1_epi32((int)x); }

#define LANES 16
#define WIDE 4 /* registers of LANES columns that are computed together */
#define HIGH 6 /* rows likewise: HIGH * WIDE sums, WIDE weights and one pair of inputs fill the 32 registers */

/* sum[r][c] += x[r] . w[c] over `pairs` pairs of inputs: x [high, stride] pairs, w [pairs, step] registers.
 * One line of what lies at `ahead` is fetched for each pair; null fetches nothing. */
INLINE void multiply(const int high, const int wide, const uint32_t *x, int64_t stride, const __m512i *w, int64_t step,
                     int64_t pairs, const char *ahead, __m512 (*sum)[WIDE]) {
    for (int64_t i = 0; i < pairs; i++) {
        __m512bh weight[WIDE];
        for (int c = 0; c < wide; c++) weight[c] = (__m512bh)_mm512_loadu_si512(w + i * step + c);
        if (ahead) _mm_prefetch(ahead + i * sizeof(__m512i), _MM_HINT_T1);
        for (int r = 0; r < high; r++) {
            const __m512bh inputs = pair(x[r * stride + i]);
            for (int c = 0; c < wide; c++) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], inputs, weight[c]);
        }
    }
}

/* The lanes of the first `count` of 16 numbers; all where there are more. */
INLINE __mmask16 first_lanes(int64_t count) { return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1); }

/* exp(x) for x <= 0, to about 1e-7 relative; 0 from -87 down. */
INLINE __m512 exp16(__m512 x) {
    const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GT_OQ);
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(alive, p, n);
}

/* 1 / (1 + exp(-x)) */
INLINE __m512 sigmoid16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_div_ps(_mm512_mask_blend_ps(negative, one, e), _mm512_add_ps(one, e));
}

/* The lanes of first, first + 1, .. that lie in low .. end - 1. */
INLINE __mmask16 between(int64_t first, int64_t low, int64_t end) {
    const __m512i lanes = _mm512_add_epi32(_mm512_set1_epi32((int)first),
                                           _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    return _mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32((int)low)) &
           _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32((int)end));
}
