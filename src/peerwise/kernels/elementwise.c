/* What a model does between its matrix products, in bfloat16 on a processor with AVX-512 BF16: RMS norm and gates with
 * their gradients, and rotation of queries and keys. Rounds to bfloat16 where a model's own modules do.
 *
 * Nothing is checked here; library.py does that.
 */
#include <math.h>
#include <omp.h>

#include "bf16.h"

/* x [rows, size] normalised in float32, rounded, then scaled. size is a multiple of 16. */
void rms_norm(int64_t rows, int64_t size, const bf16 *x, const bf16 *weight, float eps, bf16 *out) {
#pragma omp parallel for if (rows * size > 8192)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *in = x + row * size;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < size; i += 16) squares = _mm512_fmadd_ps(load16(in + i), load16(in + i), squares);
        const __m512 factor = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / size + eps));
        for (int64_t i = 0; i < size; i += 16)
            store16(out + row * size + i, _mm512_mul_ps(load16(weight + i), rounded(_mm512_mul_ps(load16(in + i), factor))));
    }
}

/* The gradients of rms_norm: of_x [rows, size], and added to of_weight [threads, size] float32. */
void rms_norm_backward(int64_t rows, int64_t size, const bf16 *x, const bf16 *weight, float eps, const bf16 *grad, bf16 *of_x,
                       float *of_weight, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *in = x + row * size, *by = grad + row * size;
        float *sums = of_weight + omp_get_thread_num() * size;
        __m512 squares = _mm512_setzero_ps(), along = _mm512_setzero_ps();
        for (int64_t i = 0; i < size; i += 16) {
            const __m512 value = load16(in + i);
            squares = _mm512_fmadd_ps(value, value, squares);
            along = _mm512_fmadd_ps(_mm512_mul_ps(load16(by + i), load16(weight + i)), value, along);
        }
        /* With n = x * scale and g the gradient by n: of_x = scale * (g - n * mean(g * n)). */
        const float scale = 1.0f / sqrtf(_mm512_reduce_add_ps(squares) / size + eps);
        const __m512 factor = _mm512_set1_ps(scale), mean = _mm512_set1_ps(_mm512_reduce_add_ps(along) * scale / size);
        for (int64_t i = 0; i < size; i += 16) {
            const __m512 normed = _mm512_mul_ps(load16(in + i), factor), g = load16(by + i);
            _mm512_storeu_ps(sums + i, _mm512_fmadd_ps(g, normed, _mm512_loadu_ps(sums + i)));
            const __m512 of_normed = _mm512_mul_ps(g, load16(weight + i));
            store16(of_x + row * size + i, _mm512_mul_ps(factor, _mm512_fnmadd_ps(normed, mean, of_normed)));
        }
    }
}

/* silu(gate), rounded, * up: all [count], a multiple of 16. */
void gated(int64_t count, const bf16 *gate, const bf16 *up, bf16 *out) {
#pragma omp parallel for
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 x = load16(gate + i);
        store16(out + i, _mm512_mul_ps(rounded(_mm512_mul_ps(x, sigmoid16(x))), load16(up + i)));
    }
}

/* The gradients of gated by gate and up, of_gate and of_up, and its output again. */
void gated_backward(int64_t count, const bf16 *gate, const bf16 *up, const bf16 *grad, bf16 *out, bf16 *of_gate, bf16 *of_up) {
#pragma omp parallel for
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 x = load16(gate + i), y = load16(up + i), g = load16(grad + i), sigmoid = sigmoid16(x);
        const __m512 opened = rounded(_mm512_mul_ps(x, sigmoid)), one = _mm512_set1_ps(1.0f);
        /* silu' = sigmoid * (1 + x * (1 - sigmoid)) */
        const __m512 slope = _mm512_mul_ps(sigmoid, _mm512_fmadd_ps(x, _mm512_sub_ps(one, sigmoid), one));
        store16(out + i, _mm512_mul_ps(opened, y));
        store16(of_gate + i, _mm512_mul_ps(_mm512_mul_ps(g, y), slope));
        store16(of_up + i, _mm512_mul_ps(opened, g));
    }
}

/* Rotate the first `heads` heads of each row in place: x [rows, stride], cos and sin [rows, size].
 * Every product and sum is rounded, as the models' own code does. size is a multiple of 32. */
void rotate(int64_t rows, int64_t heads, int64_t size, int64_t stride, bf16 *x, const bf16 *cos, const bf16 *sin) {
    const int64_t half = size / 2;
#pragma omp parallel for if (rows * heads * size > 8192)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *c = cos + row * size, *s = sin + row * size;
        for (int64_t head = 0; head < heads; head++) {
            bf16 *first = x + row * stride + head * size, *second = first + half;
            for (int64_t i = 0; i < half; i += 16) {
                __m512 a = load16(first + i), b = load16(second + i);
                __m512 ac = rounded(_mm512_mul_ps(a, load16(c + i))), bs = rounded(_mm512_mul_ps(b, load16(s + i)));
                __m512 bc = rounded(_mm512_mul_ps(b, load16(c + half + i)));
                __m512 as = rounded(_mm512_mul_ps(a, load16(s + half + i)));
                store16(first + i, _mm512_sub_ps(ac, bs));
                store16(second + i, _mm512_add_ps(bc, as));
            }
        }
    }
}
