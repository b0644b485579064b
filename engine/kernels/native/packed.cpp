// Products with 8-bit weights that have one scale per output, and with inputs that are rounded to 8 bits per row.
//
// Needs AVX-512 with VNNI and BF16; `grouped.cpp` computes the same product elsewhere, at a lower speed. All products of a
// row and an output are added as integers, so the result of a row does not depend on the other rows of the batch. Outputs
// are stored in panels of WIDTH, filled up with zeros.
//
// Letters: T tokens, K inputs, N outputs.

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

// Add four products of unsigned x and signed weights to each sum. Written in assembly because GCC 12 copies the sums
// around its builtin.
inline void add_products(__m512i& sums, __m512i x, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weights));
}

// Round a row to levels around 128, relative to its largest number, which is returned. NaN and infinity are larger than
// all numbers.
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
}
