// The numbers of the kernels: bfloat16, vectors of them as one register holds them, and e^x.
//
// Every file that includes it has a copy of its own. What is here is the same in all of them to the bit; what one kernel
// alone needs is in its file.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

using bf16 = uint16_t;
constexpr int LANES = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// Work below this many multiplications is not worth waking a second thread for.
constexpr int64_t ALONE = 1 << 18;

inline float widen(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
inline void narrow(float x, bf16* y) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *y = x != x ? bf16(0x7fc0) : bf16(rounded);
}

// e^x for x <= 0 within 2 ulp (0 below -87, NaN for NaN): 2^n times a polynomial of what remains. Of one number (float,
// int32_t: without a branch, for loops that a compiler turns into vectors) or of LANES (Floats, Ints).
template <class Float, class Int>
inline Float exponential(Float x) {
    const Float held = x < -87.0f ? Float{} - 87.0f : x;
    const Float shifted = held * 1.44269504089f + 12582912.0f;  // 1.5 × 2^23: the sum's low bits are the nearest integer
    const Float whole = shifted - 12582912.0f;
    const Float r = held - whole * 0.693359375f + whole * 2.12194440e-4f;
    Float y = Float{} + 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    Int bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const Int shifted_exponent = (bits - 0x4b400000 + 127) << 23;
    Float power;
    std::memcpy(&power, &shifted_exponent, sizeof power);
    return x < -87.0f ? Float{} : y * power;
}

}  // namespace
