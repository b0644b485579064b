// Products with bfloat16 and float32 weights. AVX-512 with bfloat16 instructions multiplies bfloat16 numbers directly.
//
// Compiled together with kernels.cpp, under its rules. Sums are in float32 and in one order for every number of rows.
//
// Letters: T tokens, K inputs, N outputs.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

// Outputs in panels of WIDTH, inputs in pairs: packed[panel][k / 2][WIDTH][2], zeros where there is no output.
constexpr int NUM_VECTORS = 3;
constexpr int64_t WIDTH = NUM_VECTORS * LANES;
constexpr int MAX_TILE_SUMS = MAX_SUMS == 16 ? 18 : 6;  // vectors of sums in the registers
constexpr int64_t AHEAD = 4096;       // bytes that are fetched before they are needed
constexpr int64_t ROWS_AT_ONCE = 64;  // rows of float32 inputs that stay in the second cache while panels are read

#if defined(__AVX512BF16__)
template <int ROWS>
void multiply(const bf16* x, int64_t x_stride, const bf16* panel, const bf16* bias, bf16* out, int64_t out_stride,
              int64_t num_in, int64_t num_out) {
    __m512 sums[ROWS][NUM_VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < NUM_VECTORS; ++v) sums[r][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k < num_in; k += 2, panel += 2 * WIDTH) {
        __m512bh weights[NUM_VECTORS];
        for (int v = 0; v < NUM_VECTORS; ++v) {
            weights[v] = (__m512bh)_mm512_loadu_si512(panel + v * 2 * LANES);
            if (ROWS <= 4) _mm_prefetch((const char*)(panel + v * 2 * LANES) + 4096, _MM_HINT_T0);
        }
        for (int r = 0; r < ROWS; ++r) {
            int32_t pair;
            std::memcpy(&pair, x + r * x_stride + k, 4);
            __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < NUM_VECTORS; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], both, weights[v]);
        }
    }
    for (int v = 0; v < NUM_VECTORS; ++v) {
        const int64_t left = num_out - v * LANES;
        if (left <= 0) break;
        const __mmask16 mask = left >= LANES ? 0xffff : __mmask16((1u << left) - 1);
        __m512 offset = _mm512_setzero_ps();
        if (bias) {
            __m256i some = _mm256_maskz_loadu_epi16(mask, bias + v * LANES);
            offset = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16));
        }
        for (int r = 0; r < ROWS; ++r) {
            __m256bh y = _mm512_cvtneps_pbh(_mm512_add_ps(sums[r][v], offset));
            _mm256_mask_storeu_epi16(out + r * out_stride + v * LANES, mask, (__m256i)y);
        }
    }
}

void multiply_rows(int64_t num_rows, const bf16* x, int64_t x_stride, const bf16* panel, const bf16* bias, bf16* out,
                   int64_t out_stride, int64_t num_in, int64_t num_out) {
    while (num_rows > 0) {
        int64_t now = num_rows >= 8 ? 8 : num_rows >= 4 ? 4 : num_rows;
        switch (now) {
#define CASE(n)                                                                            \
    case n:                                                                                \
        multiply<n>(x, x_stride, panel, bias, out, out_stride, num_in, num_out);           \
        break;
            CASE(8) CASE(4) CASE(3) CASE(2) CASE(1)
#undef CASE
        }
        num_rows -= now, x += now * x_stride, out += now * out_stride;
    }
}

#endif

// The same for other types and processors: inputs are float32, and bfloat16 weights are widened in registers, where the
// even input of a pair is the low half of 32 bits. Float32 weights are stored as [k][WIDTH].

inline Vector weights_at(const bf16* pair, int vector, int odd) {
    return odd ? upper_halves(pair + 2 * vector * LANES) : lower_halves(pair + 2 * vector * LANES);
}
inline Vector weights_at(const float* pair, int vector, int odd) { return load(pair + odd * WIDTH + vector * LANES); }

template <int ROWS, int VECTORS, class W>
void multiply(const float* x, int64_t num_in, const W* panel, const W* bias, W* out, int64_t out_stride,
              int64_t num_out) {
    Vector sums[ROWS * VECTORS] = {};
    for (int64_t k = 0; k < num_in; k += 2, panel += 2 * WIDTH) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; ++odd) {
            const auto input = [&](int r) { return x[r * num_in + k + odd]; };
            if constexpr (VECTORS < ROWS) {
                Vector weights[VECTORS];
#pragma GCC unroll 3
                for (int v = 0; v < VECTORS; ++v) weights[v] = weights_at(panel, v, odd);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 3
                    for (int v = 0; v < VECTORS; ++v) sums[r * VECTORS + v] += weights[v] * input(r);
            } else {
#pragma GCC unroll 3
                for (int v = 0; v < VECTORS; ++v) {
                    const Vector weights = weights_at(panel, v, odd);
                    if (!odd || sizeof(W) == 4)
                        __builtin_prefetch((const char*)(panel + (sizeof(W) == 4 && odd) * WIDTH) + v * 64 + AHEAD);
#pragma GCC unroll 3
                    for (int r = 0; r < ROWS; ++r) sums[r * VECTORS + v] += weights * input(r);
                }
            }
        }
    }
    float results[ROWS * VECTORS * LANES];
#pragma GCC unroll 24
    for (int i = 0; i < ROWS * VECTORS; ++i) store(sums[i], results + LANES * i);
    const int64_t count = std::min<int64_t>(LANES * VECTORS, num_out);
    for (int r = 0; r < ROWS; ++r)
        for (int64_t n = 0; n < count; ++n)
            narrow(results[LANES * VECTORS * r + n] + (bias ? widen(bias[n]) : 0.0f), out + r * out_stride + n);
}

// Tiles of many rows have a part of a panel's outputs, so that all sums fit the registers.
template <int ROWS, class W>
void multiply_tile(const float* x, int64_t num_in, const W* panel, const W* bias, W* out, int64_t out_stride,
                   int64_t num_out) {
    constexpr int VECTORS = std::min(NUM_VECTORS, std::max(1, MAX_TILE_SUMS / ROWS)), STEP = VECTORS * LANES;
    static_assert(NUM_VECTORS % VECTORS == 0);
    for (int64_t first = 0; first < std::min(WIDTH, num_out); first += STEP)
        multiply<ROWS, VECTORS>(x, num_in, panel + (sizeof(W) == 2 ? 2 : 1) * first, bias ? bias + first : nullptr,
                                out + first, out_stride, num_out - first);
}

template <class W>
void multiply_rows(int64_t num_rows, const float* x, int64_t num_in, const W* panel, const W* bias, W* out,
                   int64_t out_stride, int64_t num_out) {
    while (num_rows > 0) {
        // AVX2 has too few registers to widen the weights of three vectors for two rows.
        const bool has_two = sizeof(W) == 4 || MAX_SUMS == 16;
        const int64_t now = num_rows >= 6 && num_rows != 8 ? 6 : num_rows >= 4 ? 4 : num_rows >= 2 && has_two ? 2 : 1;
        switch (now) {
            case 6: multiply_tile<6>(x, num_in, panel, bias, out, out_stride, num_out); break;
            case 4: multiply_tile<4>(x, num_in, panel, bias, out, out_stride, num_out); break;
            case 2: multiply_tile<2>(x, num_in, panel, bias, out, out_stride, num_out); break;
            default: multiply_tile<1>(x, num_in, panel, bias, out, out_stride, num_out);
        }
        num_rows -= now, x += now * num_in, out += now * out_stride;
    }
}

template <class W>
void linear(const W* x, const W* packed, const W* bias, W* out, int64_t num_tokens, int64_t num_out, int64_t num_in) {
    const int64_t num_panels = (num_out + WIDTH - 1) / WIDTH;
    static thread_local std::vector<float> widened;  // reused from call to call
    const float* exact;
    if constexpr (sizeof(W) == 4) {
        exact = x;
    } else {
        widened.resize(num_tokens * num_in);
        exact = widened.data();
    }
#pragma omp parallel if (num_tokens * num_out * num_in > ALONE)
    {
        if constexpr (sizeof(W) == 2) {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < num_tokens; ++t)
                for (int64_t k = t * num_in; k < (t + 1) * num_in; ++k) const_cast<float*>(exact)[k] = widen(x[k]);
        }
        for (int64_t begin = 0; begin < num_tokens; begin += ROWS_AT_ONCE)
#pragma omp for schedule(static) nowait
            for (int64_t p = 0; p < num_panels; ++p) {
                const int64_t first = p * WIDTH;
                multiply_rows(std::min(ROWS_AT_ONCE, num_tokens - begin), exact + begin * num_in, num_in,
                              packed + first * num_in, bias ? bias + first : nullptr, out + begin * num_out + first,
                              num_out, num_out - first);
            }
    }
}

// Rows of `count` units of 32 bits, `stride` bytes apart -> [panel][count][WIDTH] units.
void pack(const void* weight, int64_t stride, void* packed, int64_t num_out, int64_t count) {
    constexpr int64_t AT_ONCE = 16;  // units of one row that are read together: a line of the cache
    const int64_t num_panels = (num_out + WIDTH - 1) / WIDTH;
#pragma omp parallel for if (num_out * count > ALONE)
    for (int64_t p = 0; p < num_panels; ++p) {
        uint32_t* to = (uint32_t*)packed + p * WIDTH * count;
        for (int64_t k = 0; k < count; k += AT_ONCE, to += AT_ONCE * WIDTH) {
            const int64_t now = std::min(AT_ONCE, count - k);
            for (int64_t n = 0; n < WIDTH; ++n) {
                uint32_t units[AT_ONCE] = {};
                const char* from = (const char*)weight + (p * WIDTH + n) * stride + 4 * k;
                if (p * WIDTH + n < num_out) {
                    std::memcpy(units, from, 4 * now);
                    __builtin_prefetch(from + 4 * 4 * AT_ONCE);
                }
                for (int64_t i = 0; i < now; ++i) to[i * WIDTH + n] = units[i];
            }
        }
    }
}

}  // namespace

extern "C" {

int64_t hearth_packed_size(int64_t num_out, int64_t num_in) { return (num_out + WIDTH - 1) / WIDTH * WIDTH * num_in; }

// weight [N, K], rows `stride` apart, K even.
void hearth_pack_bf16(const bf16* weight, int64_t stride, bf16* packed, int64_t num_out, int64_t num_in) {
    pack(weight, 2 * stride, packed, num_out, num_in / 2);
}
void hearth_pack_f32(const float* weight, int64_t stride, float* packed, int64_t num_out, int64_t num_in) {
    pack(weight, 4 * stride, packed, num_out, num_in);
}

// out [T, N] = x [T, K] × packed + bias.
void hearth_linear_bf16(const bf16* x, const bf16* packed, const bf16* bias, bf16* out, int64_t num_tokens,
                        int64_t num_out, int64_t num_in) {
#if defined(__AVX512BF16__)
    const int64_t num_panels = (num_out + WIDTH - 1) / WIDTH;
#pragma omp parallel for schedule(static) if (num_tokens * num_out * num_in > ALONE)
    for (int64_t p = 0; p < num_panels; ++p) {
        const int64_t first = p * WIDTH;
        multiply_rows(num_tokens, x, num_in, packed + first * num_in, bias ? bias + first : nullptr, out + first,
                      num_out, num_in, num_out - first);
    }
#else
    linear(x, packed, bias, out, num_tokens, num_out, num_in);
#endif
}
void hearth_linear_f32(const float* x, const float* packed, const float* bias, float* out, int64_t num_tokens,
                       int64_t num_out, int64_t num_in) {
    linear(x, packed, bias, out, num_tokens, num_out, num_in);
}
}
