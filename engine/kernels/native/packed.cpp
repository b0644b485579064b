// Products with weights that stay packed: 8-bit levels by output with rounded inputs, 4-bit levels by group of inputs.
//
// Compiled together with kernels.cpp, under its rules: optional, over raw memory, every row's result its own. Outputs
// lie in panels of WIDTH, zeros where there is no output.
//
// Letters: T tokens, K inputs, N outputs, G groups of inputs.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "numbers.h"

namespace {

constexpr int NUM_VECTORS = 3;
constexpr int64_t WIDTH = NUM_VECTORS * LANES;
constexpr int64_t QUAD = 4;         // inputs of one 8-bit step
constexpr int64_t CHUNK = 8;        // inputs of one 4-bit word of 16 bits, half of them in each of two neighbors

int64_t panels_of(int64_t num_out) { return (num_out + WIDTH - 1) / WIDTH; }
int64_t quads_of(int64_t num_in) { return (num_in + QUAD - 1) / QUAD; }

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define HAS_PACKED 1

inline __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
inline __mmask16 lanes(int64_t left) { return left >= LANES ? 0xffff : __mmask16((1u << std::max<int64_t>(left, 0)) - 1); }

inline void put(__m512 y, const bf16* bias, bf16* out, __mmask16 mask) {
    if (bias) y = _mm512_add_ps(y, widen(_mm256_maskz_loadu_epi16(mask, bias)));
    _mm256_mask_storeu_epi16(out, mask, (__m256i)_mm512_cvtneps_pbh(y));
}

// sums += four products of unsigned x and signed weights. Written out, since GCC 12 copies the sums around its builtin.
inline void add_products(__m512i& sums, __m512i x, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weights));
}

// A row's numbers as levels around 128 of its largest one, which is returned; NaN and infinity are larger than all.
float round_row(const bf16* x, uint8_t* levels, int64_t num_in) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t k = 0; k < num_in; k += LANES) {
        __m256i bits = _mm256_maskz_loadu_epi16(lanes(num_in - k), x + k);
        most = _mm512_max_epu32(most, _mm512_cvtepu16_epi32(_mm256_and_si256(bits, _mm256_set1_epi16(0x7fff))));
    }
    uint32_t peak_bits = uint32_t(_mm512_reduce_max_epu32(most)) << 16;
    float peak;
    std::memcpy(&peak, &peak_bits, 4);
    __m512 factor = _mm512_set1_ps(peak == 0 ? 0.0f : 127.0f / peak);
    for (int64_t k = 0; k < num_in; k += LANES) {
        __mmask16 mask = lanes(num_in - k);
        __m512 y = _mm512_mul_ps(widen(_mm256_maskz_loadu_epi16(mask, x + k)), factor);
        __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(y), _mm512_set1_epi32(128));
        _mm_mask_storeu_epi8(levels + k, mask, _mm512_cvtepi32_epi8(whole));
    }
    return peak;
}

template <int ROWS>
void multiply8(const uint8_t* x, int64_t x_stride, const float* peaks, const int8_t* panel, const int32_t* sums_of,
               const float* scales, const bf16* bias, bf16* out, int64_t out_stride, int64_t num_in, int64_t num_out) {
    __m512i sums[ROWS][NUM_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NUM_VECTORS; ++v) sums[r][v] = _mm512_setzero_si512();
    for (int64_t k = 0; k < num_in; k += QUAD, panel += QUAD * WIDTH) {
        __m512i weights[NUM_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < NUM_VECTORS; ++v) {
            weights[v] = _mm512_loadu_si512(panel + v * QUAD * LANES);
            if (ROWS <= 4) _mm_prefetch((const char*)(panel + v * QUAD * LANES) + 4096, _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            int32_t four;
            std::memcpy(&four, x + r * x_stride + k, 4);
            __m512i all = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int v = 0; v < NUM_VECTORS; ++v) add_products(sums[r][v], all, weights[v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < NUM_VECTORS; ++v) {
        const __mmask16 mask = lanes(num_out - v * LANES);
        __m512i shift = _mm512_slli_epi32(_mm512_loadu_si512(sums_of + v * LANES), 7);  // 128 × the weights' sum
        __m512 scale = _mm512_loadu_ps(scales + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            __m512 y = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[r][v], shift));
            y = _mm512_mul_ps(y, _mm512_mul_ps(scale, _mm512_set1_ps(peaks[r])));
            put(y, bias ? bias + v * LANES : nullptr, out + r * out_stride + v * LANES, mask);
        }
    }
}

struct Panels {
    const uint16_t* levels;  // of the first
    const float* scales;     // [G, WIDTH] of the first
    const float* offsets;    // [G, WIDTH] of the first: what each unit of a group's inputs adds; or null
    int64_t num_groups;
    int64_t group_size;  // inputs in a group, a multiple of CHUNK

    int64_t levels_stride() const { return num_groups * group_size / CHUNK * 2 * WIDTH; }
    int64_t group_at(int v, int64_t g) const { return (v / NUM_VECTORS * num_groups + g) * WIDTH + v % NUM_VECTORS * LANES; }
};

// A group's products are added one after the other, however many rows there are: a row's result is its own. Where there
// are few rows, a second panel fills the time that an addition takes.
template <int ROWS, int NUM_PANELS>
void multiply4(const bf16* x, int64_t x_stride, const float* totals_of_x, const Panels& panels, const bf16* bias,
               bf16* out, int64_t out_stride, int64_t num_out) {
    constexpr int VECTORS = NUM_PANELS * NUM_VECTORS;
    // -8 … 7 in bfloat16, twice: bits above a nibble that stand in the index do not matter
    alignas(64) static const bf16 LEVELS[32] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
        0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040,
        0x4080, 0x40a0, 0x40c0, 0x40e0};
    const __m512i table = _mm512_load_si512(LEVELS);
    const int64_t stride = panels.levels_stride();
    const uint16_t* levels = panels.levels;
    __m512 whole[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) whole[r][v] = _mm512_setzero_ps();
    for (int64_t g = 0; g < panels.num_groups; ++g) {
        __m512 sums[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_setzero_ps();
        const int64_t end = (g + 1) * panels.group_size;
        for (int64_t k = g * panels.group_size; k < end; k += CHUNK, levels += 2 * WIDTH) {
            __m512i words[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) {
                const uint16_t* from = levels + v / NUM_VECTORS * stride + v % NUM_VECTORS * 2 * LANES;
                words[v] = _mm512_loadu_si512(from);
                if (ROWS <= 4) _mm_prefetch((const char*)from + 4096, _MM_HINT_T0);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                __m512bh weights[VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v)
                    weights[v] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words[v], 4 * j), table);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    int32_t pair;
                    std::memcpy(&pair, x + r * x_stride + k + 2 * j, 4);
                    __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], both, weights[v]);
                }
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
            __m512 scale = _mm512_loadu_ps(panels.scales + panels.group_at(v, g));
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                whole[r][v] = _mm512_fmadd_ps(sums[r][v], scale, whole[r][v]);
                if (panels.offsets) {
                    __m512 offset = _mm512_loadu_ps(panels.offsets + panels.group_at(v, g));
                    __m512 total = _mm512_set1_ps(totals_of_x[r * panels.num_groups + g]);
                    whole[r][v] = _mm512_fmadd_ps(offset, total, whole[r][v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r)
            put(whole[r][v], bias ? bias + v * LANES : nullptr, out + r * out_stride + v * LANES,
                lanes(num_out - v * LANES));
}
#endif

}  // namespace

extern "C" {

int hearth_has_packed() {
#if defined(HAS_PACKED)
    return 1;
#else
    return 0;
#endif
}

int64_t hearth_panels(int64_t num_out) { return panels_of(num_out); }

// weight [N, K] -> packed[panel][k / 4][WIDTH][4], and the sum of each output's weights [panels × WIDTH].
void hearth_pack8(const int8_t* weight, int8_t* packed, int32_t* sums, int64_t num_out, int64_t num_in) {
    const int64_t num_quads = quads_of(num_in);
#pragma omp parallel for if (num_out * num_in > ALONE)
    for (int64_t p = 0; p < panels_of(num_out); ++p) {
        int8_t* to = packed + p * WIDTH * num_quads * QUAD;
        for (int64_t k = 0; k < num_quads * QUAD; k += QUAD)
            for (int64_t n = p * WIDTH; n < (p + 1) * WIDTH; ++n)
                for (int64_t i = k; i < k + QUAD; ++i) *to++ = n < num_out && i < num_in ? weight[n * num_in + i] : 0;
        for (int64_t n = p * WIDTH; n < (p + 1) * WIDTH; ++n) {
            sums[n] = 0;
            for (int64_t i = 0; n < num_out && i < num_in; ++i) sums[n] += weight[n * num_in + i];
        }
    }
}

// levels [N, K / 2], the even input in the low half -> packed[panel][k / 8][WIDTH × 2], see multiply4.
void hearth_pack4(const uint8_t* levels, uint16_t* packed, int64_t num_out, int64_t num_in) {
#pragma omp parallel for if (num_out * num_in > ALONE)
    for (int64_t p = 0; p < panels_of(num_out); ++p) {
        uint16_t* to = packed + p * WIDTH * 2 * (num_in / CHUNK);
        for (int64_t k = 0; k < num_in; k += CHUNK)
            for (int64_t n = p * WIDTH; n < (p + 1) * WIDTH; ++n)
                for (int odd = 0; odd < 2; ++odd) {
                    uint16_t word = 0x8888;
                    if (n < num_out) {
                        word = 0;
                        for (int j = 0; j < 4; ++j) {
                            const uint8_t both = levels[n * (num_in / 2) + k / 2 + j];
                            word |= uint16_t(odd ? both >> 4 : both & 15) << (4 * j);
                        }
                    }
                    *to++ = word;
                }
    }
}

// out [T, N] = each row of x [T, K] rounded, × packed × scales [panels × WIDTH], + bias [N] or null.
void hearth_linear8(const bf16* x, const int8_t* packed, const int32_t* sums, const float* scales, const bf16* bias,
                    bf16* out, int64_t num_tokens, int64_t num_out, int64_t num_in) {
#if defined(HAS_PACKED)
    const int64_t stride = quads_of(num_in) * QUAD;
    std::vector<uint8_t> levels(num_tokens * stride, 128);
    std::vector<float> peaks(num_tokens);
#pragma omp parallel if (num_tokens * num_out * num_in > ALONE)
    {
#pragma omp for
        for (int64_t t = 0; t < num_tokens; ++t) peaks[t] = round_row(x + t * num_in, levels.data() + t * stride, num_in);
#pragma omp for schedule(static)
        for (int64_t p = 0; p < panels_of(num_out); ++p) {
            const int64_t first = p * WIDTH;
            for (int64_t t = 0; t < num_tokens;) {
                const int64_t left = num_tokens - t, now = left >= 8 ? 8 : left >= 4 ? 4 : left;
#define CASE(n)                                                                                                       \
    case n:                                                                                                           \
        multiply8<n>(levels.data() + t * stride, stride, peaks.data() + t, packed + first * stride, sums + first,     \
                     scales + first, bias ? bias + first : nullptr, out + t * num_out + first, num_out, stride,       \
                     num_out - first);                                                                                \
        break;
                switch (now) { CASE(8) CASE(4) CASE(3) CASE(2) CASE(1) }
#undef CASE
                t += now;
            }
        }
    }
#else
    (void)x, (void)packed, (void)sums, (void)scales, (void)bias, (void)out, (void)num_tokens, (void)num_out, (void)num_in;
#endif
}

// out [T, N] = x [T, K] × packed, by groups: scales and offsets (or null) are [panels, G, WIDTH]; + bias [N] or null.
void hearth_linear4(const bf16* x, const uint16_t* packed, const float* scales, const float* offsets, const bf16* bias,
                    bf16* out, int64_t num_tokens, int64_t num_out, int64_t num_in, int64_t group_size) {
#if defined(HAS_PACKED)
    const int64_t num_groups = num_in / group_size;
    std::vector<float> totals(offsets ? num_tokens * num_groups : 0);
    for (size_t i = 0; i < totals.size(); ++i) {
        float total = 0;
        for (int64_t k = 0; k < group_size; ++k) {
            uint32_t bits = uint32_t(x[i * group_size + k]) << 16;
            float y;
            std::memcpy(&y, &bits, 4);
            total += y;
        }
        totals[i] = total;
    }
    const int64_t few = num_tokens % 4 < 3 ? num_tokens % 4 : 0;  // the last rows, for which two panels are read at once
#pragma omp parallel for schedule(static) if (num_tokens * num_out * num_in > ALONE)
    for (int64_t pair = 0; pair < panels_of(num_out); pair += 2) {
        const bool is_pair = pair + 1 < panels_of(num_out);
        for (int64_t p = pair; p <= pair + is_pair; ++p) {
            const int64_t first = p * WIDTH, groups = first * num_groups;
            const Panels panels = {packed + first * 2 * (num_in / CHUNK), scales + groups,
                                   offsets ? offsets + groups : nullptr, num_groups, group_size};
            for (int64_t t = 0; t < num_tokens;) {
                const int64_t left = num_tokens - few - t, now = left >= 8 ? 8 : left >= 4 ? 4 : left > 0 ? 3 : few;
#define CASE(rows, wide)                                                                                          \
    multiply4<rows, wide>(x + t * num_in, num_in, totals.data() + (offsets ? t * num_groups : 0), panels,        \
                          bias ? bias + first : nullptr, out + t * num_out + first, num_out, num_out - first)
                if (now == 8) CASE(8, 1);
                else if (now == 4) CASE(4, 1);
                else if (now == 3) CASE(3, 1);
                else if (p > pair) break;
                else if (now == 2 && is_pair) CASE(2, 2);
                else if (now == 2) CASE(2, 1);
                else if (is_pair) CASE(1, 2);
                else CASE(1, 1);
#undef CASE
                t += now;
            }
        }
    }
#else
    (void)x, (void)packed, (void)scales, (void)offsets, (void)bias, (void)out, (void)num_tokens, (void)num_out;
    (void)num_in, (void)group_size;
#endif
}
}
