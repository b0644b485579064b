// Vectors of LANES float32 numbers, and how they are read and written as float32 or bfloat16.
//
// With AVX2, a vector is two registers in a struct: GCC moves its own vectors through memory if they are wider than a
// register. Everywhere else GCC's vectors are used, which support the same operators. `sum4` adds the numbers of a vector in
// one order everywhere: those 2 apart, then 1, 8 and 4 apart.

#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "numbers.h"

namespace {

// So that code for both kinds of numbers takes float32 as it is.
inline float widen(float x) { return x; }
inline void narrow(float x, float* y) { *y = x; }

#if defined(__AVX2__) && !defined(__AVX512F__)

constexpr int MAX_SUMS = 4;  // vectors that are summed up in registers
struct Vector {
    __m256 low, high;
};
inline Vector all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vector operator+(Vector x, Vector y) { return {x.low + y.low, x.high + y.high}; }
inline Vector operator-(Vector x, Vector y) { return {x.low - y.low, x.high - y.high}; }
inline Vector operator*(Vector x, Vector y) { return {x.low * y.low, x.high * y.high}; }
inline Vector operator/(Vector x, Vector y) { return {x.low / y.low, x.high / y.high}; }
inline Vector operator*(Vector x, float y) { return x * all(y); }
inline Vector operator*(float x, Vector y) { return all(x) * y; }
inline Vector operator-(Vector x, float y) { return x - all(y); }
inline Vector operator+(float x, Vector y) { return all(x) + y; }
inline void operator+=(Vector& x, Vector y) { x = x + y; }

inline Vector load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256 load8(const bf16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline Vector load(const bf16* p) { return {load8(p), load8(p + 8)}; }
inline Vector lower_halves(const bf16* p) {  // of 16 pairs
    const __m256i* pairs = (const __m256i*)p;
    const auto half = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
    return {half(_mm256_loadu_si256(pairs)), half(_mm256_loadu_si256(pairs + 1))};
}
inline Vector upper_halves(const bf16* p) {
    const __m256i* pairs = (const __m256i*)p;
    const auto half = [](__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int32_t(0xffff0000)))); };
    return {half(_mm256_loadu_si256(pairs)), half(_mm256_loadu_si256(pairs + 1))};
}
inline void store(Vector x, float* p) { _mm256_storeu_ps(p, x.low), _mm256_storeu_ps(p + 8, x.high); }
inline __m256i narrow8(__m256 x) {  // as `narrow`, in 32 bits
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(0x7fc0), is_nan);
}
inline void store(Vector x, bf16* p) {
    const __m256i halves = _mm256_packus_epi32(narrow8(x.low), narrow8(x.high));
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(halves, 0xd8));
}

inline Vector larger(Vector x, Vector y) { return {_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high)}; }
inline Vector minus_size(Vector x) {  // -|x|
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(x.low, sign), _mm256_or_ps(x.high, sign)};
}
inline Vector if_negative(Vector x, Vector yes, Vector no) {
    return {_mm256_blendv_ps(no.low, yes.low, x.low), _mm256_blendv_ps(no.high, yes.high, x.high)};
}
inline __m256 exponential8(__m256 x) {  // as `exponential`
    const __m256 held = _mm256_max_ps(_mm256_set1_ps(-87.0f), x);  // NaN stays NaN
    const __m256 shifted = held * _mm256_set1_ps(1.44269504089f) + _mm256_set1_ps(12582912.0f);
    const __m256 whole = shifted - _mm256_set1_ps(12582912.0f);
    const __m256 r = held - whole * _mm256_set1_ps(0.693359375f) + whole * _mm256_set1_ps(2.12194440e-4f);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = y * r + _mm256_set1_ps(1.3981999507e-3f);
    y = y * r + _mm256_set1_ps(8.3334519073e-3f);
    y = y * r + _mm256_set1_ps(4.1665795894e-2f);
    y = y * r + _mm256_set1_ps(1.6666665459e-1f);
    y = y * r + _mm256_set1_ps(5.0000001201e-1f);
    y = y * r * r + r + _mm256_set1_ps(1.0f);
    const __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000 - 127));
    y = y * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ), y);
}
inline Vector exponentials(Vector x) { return {exponential8(x.low), exponential8(x.high)}; }

inline void sum4(const Vector* x, float* y) {
    const auto pairs = [&](__m256 a, __m256 b) { return _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b); };
    const auto quads = [&](__m256 ab, __m256 cd) {
        const __m256d p = _mm256_castps_pd(ab), q = _mm256_castps_pd(cd);
        return _mm256_castpd_ps(_mm256_unpacklo_pd(p, q)) + _mm256_castpd_ps(_mm256_unpackhi_pd(p, q));
    };
    const __m256 half = quads(pairs(x[0].low, x[1].low), pairs(x[2].low, x[3].low)) +
                        quads(pairs(x[0].high, x[1].high), pairs(x[2].high, x[3].high));
    _mm_storeu_ps(y, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
}
inline float sum(Vector x) {
    const Vector all4[4] = {x, x, x, x};
    float y[4];
    sum4(all4, y);
    return y[0];
}
inline float largest(Vector x) {
    float each[8];
    _mm256_storeu_ps(each, _mm256_max_ps(x.low, x.high));
    float peak = each[0];
    for (int i = 1; i < 8; ++i) peak = each[i] > peak ? each[i] : peak;
    return peak;
}

// 8 registers, turned: what was lane j of register i becomes lane i of register j.
inline void turn8(__m256* x) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]), a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
            b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}
inline void turn(Vector* x) {
    __m256 parts[2][2][8];  // [half of the result][half of the input's vectors]
    for (int i = 0; i < 16; ++i) parts[0][i / 8][i % 8] = x[i].low, parts[1][i / 8][i % 8] = x[i].high;
    for (auto& half : parts)
        for (auto& block : half) turn8(block);
    for (int i = 0; i < 16; ++i) x[i] = {parts[i / 8][0][i % 8], parts[i / 8][1][i % 8]};
}

#else

constexpr int MAX_SUMS = 16;
using Vector = Floats;
inline Vector all(float x) { return Vector{} + x; }

inline Vector load(const float* p) {
    Vector x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
inline Vector load(const bf16* p) {
    Halves x;
    std::memcpy(&x, p, sizeof x);
    Bits bits = __builtin_convertvector(x, Bits) << 16;
    Vector y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
}
inline Vector lower_halves(const bf16* p) {  // of 16 pairs
    Bits pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return (Vector)(pairs << 16);
}
inline Vector upper_halves(const bf16* p) {
    Bits pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return (Vector)(pairs & 0xffff0000u);
}
inline void store(Vector x, float* p) { std::memcpy(p, &x, sizeof x); }
inline void store(Vector x, bf16* p) {  // as `narrow`
    Bits bits, is_nan = (Bits)(x != x);
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Halves rounded = __builtin_convertvector((bits & ~is_nan) | (is_nan & 0x7fc0), Halves);
    std::memcpy(p, &rounded, sizeof rounded);
}

inline Vector larger(Vector x, Vector y) { return x > y ? x : y; }
inline float largest(Vector x) {
    float peak = x[0];
    for (int j = 1; j < LANES; ++j) peak = x[j] > peak ? x[j] : peak;
    return peak;
}

#if defined(__AVX512F__)
inline Vector minus_size(Vector x) { return x < 0.0f ? x : -x; }  // -|x|
inline Vector if_negative(Vector x, Vector yes, Vector no) { return x < 0.0f ? yes : no; }
inline Vector exponentials(Vector x) { return exponential<Floats, Ints>(x); }

inline float sum(Vector x) { return _mm512_reduce_add_ps((__m512)x); }
inline void sum4(const Vector* x, float* y) {
    __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 abcd = _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(y, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
// 16 vectors, turned: what was lane j of vector i becomes lane i of vector j.
inline void turn(Vector* x) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = (__m512)x[i];
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            __m512d low = _mm512_castps_pd(b[i + j]), high = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    for (int i = 0; i < 4; ++i) {  // lane 4 l + i of all: four vectors of four rows each
        __m512 low = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), high = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        x[i] = (Vector)_mm512_shuffle_f32x4(low, high, 0x88);
        x[i + 8] = (Vector)_mm512_shuffle_f32x4(low, high, 0xdd);
        low = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd), high = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        x[i + 4] = (Vector)_mm512_shuffle_f32x4(low, high, 0x88);
        x[i + 12] = (Vector)_mm512_shuffle_f32x4(low, high, 0xdd);
    }
}
#else
// Loops over single numbers: GCC splits comparisons of vectors that are wider than registers.
inline Vector minus_size(Vector x) {
    for (int j = 0; j < LANES; ++j) x[j] = x[j] < 0.0f ? x[j] : -x[j];
    return x;
}
inline Vector if_negative(Vector x, Vector yes, Vector no) {
    for (int j = 0; j < LANES; ++j) x[j] = x[j] < 0.0f ? yes[j] : no[j];
    return x;
}
inline Vector exponentials(Vector x) {
    for (int j = 0; j < LANES; ++j) x[j] = exponential<float, int32_t>(x[j]);
    return x;
}

inline float sum(Vector x) {
    for (int apart : {2, 1, 8, 4})
        for (int j = 0; j < LANES; ++j)
            if (!(j & apart)) x[j] += x[j + apart];
    return x[0];
}
inline void sum4(const Vector* x, float* y) {
    for (int i = 0; i < 4; ++i) y[i] = sum(x[i]);
}
inline void turn(Vector* x) {
    for (int i = 0; i < LANES; ++i)
        for (int j = 0; j < i; ++j) {
            const float lower = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = lower;
        }
}
#endif
#endif

}  // namespace
