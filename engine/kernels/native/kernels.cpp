// The CPU kernels in C++: one call where torch needs five to ten, and products and attention made for few rows.
//
// Optional: `build.py` compiles this file for the machine it runs on, `library.py` finds the result, and everything
// here has a twin in torch. Plain C functions over raw memory; shapes and strides are checked by the callers. Numbers
// are float32 ("f32") or bfloat16 ("bf16", kept as uint16); all sums are in float32. Every row's result is the same
// whatever rows are beside it, and however many threads work. NaN and infinities go through as in torch.
//
// Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size, C channels, K inputs, N outputs.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

// ---------------------------------------------------------------------------------------------------------- norms

template <class Out>
void rms_norm(const float* x, const float* weight, Out* out, int64_t num_tokens, int64_t width, float eps) {
#pragma omp parallel for if (num_tokens * width > ALONE)
    for (int64_t t = 0; t < num_tokens; ++t) {
        const float* row = x + t * width;
        Out* to = out + t * width;
        Vector squares[4] = {};
        int64_t i = 0;
        for (; i + 4 * LANES <= width; i += 4 * LANES)
            for (int j = 0; j < 4; ++j) {
                Vector v = load(row + i + j * LANES);
                squares[j] += v * v;
            }
        float total = sum(squares[0] + squares[1] + squares[2] + squares[3]);
        for (; i < width; ++i) total += row[i] * row[i];
        float scale = 1.0f / std::sqrt(total / float(width) + eps);
        int64_t c = 0;
        for (; c + LANES <= width; c += LANES) store(load(row + c) * scale * load(weight + c), to + c);
        for (; c < width; ++c) narrow(row[c] * scale * weight[c], to + c);
    }
}

// ------------------------------------------------------------------------------------------------------- rotation

// Heads of 2 × half numbers at the start of each row of qkv: (a, b) -> (a cos - b sin, b cos + a sin).
template <class E>
void rotate(E* qkv, int64_t qkv_stride, const E* cos, int64_t cos_stride, const E* sin, int64_t sin_stride,
            int64_t num_tokens, int64_t num_heads, int64_t half) {
#pragma omp parallel for if (num_tokens * num_heads * half > ALONE / 4)
    for (int64_t t = 0; t < num_tokens; ++t) {
        const E* c = cos + t * cos_stride;
        const E* s = sin + t * sin_stride + half;  // the second of its two halves, the one that is not negated
        for (int64_t h = 0; h < num_heads; ++h) {
            E* a = qkv + t * qkv_stride + h * 2 * half;
            E* b = a + half;
            int64_t i = 0;
            for (; i + LANES <= half; i += LANES) {
                Vector x = load(a + i), y = load(b + i), cosine = load(c + i), sine = load(s + i);
                store(x * cosine - y * sine, a + i);
                store(y * cosine + x * sine, b + i);
            }
            for (; i < half; ++i) {
                float x = widen(a[i]), y = widen(b[i]), cosine = widen(c[i]), sine = widen(s[i]);
                narrow(x * cosine - y * sine, a + i);
                narrow(y * cosine + x * sine, b + i);
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------------- activation

// silu(gate) × up of rows [gate | up].
template <class E>
void gate_silu(const E* gate_up, E* out, int64_t num_tokens, int64_t width) {
#pragma omp parallel for if (num_tokens * width > ALONE / 8)
    for (int64_t t = 0; t < num_tokens; ++t) {
        const E *gate = gate_up + t * 2 * width, *up = gate + width;
        E* to = out + t * width;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            const Vector g = load(gate + i), e = exponentials(minus_size(g));
            const Vector numerator = if_negative(g, g * e, g);  // g e^g / (1 + e^g) or g / (1 + e^-g)
            store(numerator / (1.0f + e) * load(up + i), to + i);
        }
        for (; i < width; ++i) {
            float g = widen(gate[i]);
            narrow(g / (1.0f + std::exp(-g)) * widen(up[i]), to + i);
        }
    }
}

// ------------------------------------------------------------------------------------------------------- residual

template <class E>
void accumulate(float* stream, const E* x, float factor, int64_t size) {
#pragma omp parallel for if (size > ALONE)
    for (int64_t i = 0; i < size; ++i) stream[i] += factor * widen(x[i]);
}

}  // namespace

extern "C" {

void hearth_rms_norm_f32(const float* x, const float* weight, float* out, int64_t tokens, int64_t width, float eps) {
    rms_norm(x, weight, out, tokens, width, eps);
}
void hearth_rms_norm_bf16(const float* x, const float* weight, bf16* out, int64_t tokens, int64_t width, float eps) {
    rms_norm(x, weight, out, tokens, width, eps);
}

void hearth_rotate_f32(float* qkv, int64_t qkv_stride, const float* cos, int64_t cos_stride, const float* sin,
                       int64_t sin_stride, int64_t tokens, int64_t heads, int64_t half) {
    rotate(qkv, qkv_stride, cos, cos_stride, sin, sin_stride, tokens, heads, half);
}
void hearth_rotate_bf16(bf16* qkv, int64_t qkv_stride, const bf16* cos, int64_t cos_stride, const bf16* sin,
                        int64_t sin_stride, int64_t tokens, int64_t heads, int64_t half) {
    rotate(qkv, qkv_stride, cos, cos_stride, sin, sin_stride, tokens, heads, half);
}

void hearth_gate_silu_f32(const float* gate_up, float* out, int64_t tokens, int64_t width) {
    gate_silu(gate_up, out, tokens, width);
}
void hearth_gate_silu_bf16(const bf16* gate_up, bf16* out, int64_t tokens, int64_t width) {
    gate_silu(gate_up, out, tokens, width);
}

void hearth_accumulate_bf16(float* stream, const bf16* x, float factor, int64_t size) {
    accumulate(stream, x, factor, size);
}
}
