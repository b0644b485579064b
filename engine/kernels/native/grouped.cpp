// Products with weights of 4 or 8 bits that have a scale per group of inputs.
//
// Each row of x is rounded to 8 bits, with one scale per block of at most 32 inputs. The products of a block are added
// as integers, which is exact; blocks are added in float32, always in the same order. So the result of a row does not
// depend on the other rows of the batch.
//
// Weights are stored in panels of WIDTH outputs. A panel holds its inputs in quads of 4, which the processor multiplies
// and adds in one instruction:
//
//     8 bits: levels[panel][quad][WIDTH outputs][4 inputs], signed
//     4 bits: levels[panel][pair of quads][WIDTH outputs][4 inputs], the first quad in the low half of a byte, unsigned
//
// weight = level × scale + offset, where a level is counted from the middle of its range. Scales and offsets are
// float16, [panel][group][WIDTH outputs], in units of a power of two for the whole matrix.
//
// Letters: T tokens, K inputs, N outputs.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "numbers.h"

namespace {

constexpr int64_t QUAD = 4;
constexpr int64_t MAX_BLOCK = 32;
constexpr int64_t PREFETCH_BYTES = 2048;
constexpr int64_t LEVELS_AT_ONCE = 1 << 18;  // bytes of rounded inputs that are used while they are in the second cache

// Below, for each instruction set: VECTORS and MAX_ROWS, the size of a tile of results that fits the registers; Reals, a
// vector of LANES numbers; and Dot<BITS>, which multiplies quads of weights by a quad of inputs and adds the products to
// integer sums. `shift` is -MIDDLE × (sum of the inputs), because unsigned levels are counted from 0.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

constexpr int VECTORS = 2, MAX_ROWS = 4;
using Reals = __m512;
inline Reals zeros() { return _mm512_setzero_ps(); }
inline Reals load_halves(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Reals times(Reals x, float y) { return _mm512_mul_ps(x, _mm512_set1_ps(y)); }
inline void add_product(Reals& sum, Reals x, Reals y) { sum = _mm512_fmadd_ps(x, y, sum); }
inline void add_multiple(Reals& sum, Reals x, float y) { sum = _mm512_fmadd_ps(x, _mm512_set1_ps(y), sum); }
inline void put(Reals x, float* y) { _mm512_storeu_ps(y, x); }

template <int BITS>
struct Dot {
    static constexpr int32_t MIDDLE = 1 << (BITS - 1);
    using Weights = __m512i;
    using Sums = __m512i;
    static Sums start(int32_t shift) { return _mm512_set1_epi32(shift); }
    static void load(const uint8_t* p, Weights* quads) {
        const __m512i bytes = _mm512_loadu_si512(p);
        if (BITS == 8) {
            quads[0] = _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
        } else {
            quads[0] = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
            quads[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
        }
    }
    static void add(Sums& sums, Weights weights, int32_t quad) {
        // Written in assembly because GCC 12 copies the sums around its builtin.
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(_mm512_set1_epi32(quad)));
    }
    static Reals finish(Sums sums, int32_t) { return _mm512_cvtepi32_ps(sums); }
};

#elif defined(__AVX2__)

constexpr int VECTORS = 1, MAX_ROWS = 4;
struct Reals {
    __m256 half[2];
};
inline Reals zeros() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
inline Reals load_halves(const uint16_t* p) {
    const __m128i* halves = (const __m128i*)p;
    return {{_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
}
inline Reals times(Reals x, float y) {
    return {{_mm256_mul_ps(x.half[0], _mm256_set1_ps(y)), _mm256_mul_ps(x.half[1], _mm256_set1_ps(y))}};
}
inline void add_product(Reals& sum, Reals x, Reals y) {
    for (int h = 0; h < 2; ++h) sum.half[h] = _mm256_fmadd_ps(x.half[h], y.half[h], sum.half[h]);
}
inline void add_multiple(Reals& sum, Reals x, float y) {
    for (int h = 0; h < 2; ++h) sum.half[h] = _mm256_fmadd_ps(x.half[h], _mm256_set1_ps(y), sum.half[h]);
}
inline void put(Reals x, float* y) {
    _mm256_storeu_ps(y, x.half[0]);
    _mm256_storeu_ps(y + 8, x.half[1]);
}

#if defined(__AVXVNNI__)
constexpr bool HAS_VNNI = true;
inline __m256i add_quads(__m256i sums, __m256i weights, __m256i inputs) {
    return _mm256_dpbusd_avx_epi32(sums, weights, inputs);
}
#else
constexpr bool HAS_VNNI = false;
inline __m256i add_quads(__m256i sums, __m256i, __m256i) { return sums; }
#endif

template <int BITS>
struct Dot {
    // Without VNNI, 8-bit weights stay signed, and 4-bit products are added in 16 bits, which hold those of a block.
    static constexpr int32_t MIDDLE = HAS_VNNI || BITS == 4 ? 1 << (BITS - 1) : 0;
    static constexpr bool IS_NARROW = !HAS_VNNI && BITS == 4;
    struct Weights {
        __m256i half[2];
    };
    struct Sums {
        __m256i half[2];
    };
    static Sums start(int32_t shift) {
        const __m256i sums = IS_NARROW || MIDDLE == 0 ? _mm256_setzero_si256() : _mm256_set1_epi32(shift);
        return {{sums, sums}};
    }
    static void load(const uint8_t* p, Weights* quads) {
        for (int h = 0; h < 2; ++h) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i*)p + h);
            if (BITS == 4) {
                quads[0].half[h] = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
                quads[1].half[h] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
            } else {
                quads[0].half[h] = HAS_VNNI ? _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) : bytes;
            }
        }
    }
    static void add(Sums& sums, Weights weights, int32_t quad) {
        const __m256i inputs = _mm256_set1_epi32(quad);
        for (int h = 0; h < 2; ++h) {
            const __m256i w = weights.half[h];
            if (HAS_VNNI) {
                sums.half[h] = add_quads(sums.half[h], w, inputs);
            } else if (BITS == 4) {
                sums.half[h] = _mm256_add_epi16(sums.half[h], _mm256_maddubs_epi16(w, inputs));
            } else {
                // One factor must be unsigned: |w| × (x with the sign of w). Levels of x are within ±127, so that a pair
                // of products fits 16 bits.
                const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(inputs, w));
                sums.half[h] = _mm256_add_epi32(sums.half[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
    }
    static Reals finish(Sums sums, int32_t shift) {
        Reals y;
        for (int h = 0; h < 2; ++h) {
            __m256i whole = sums.half[h];
            if (IS_NARROW)
                whole = _mm256_add_epi32(_mm256_madd_epi16(whole, _mm256_set1_epi16(1)), _mm256_set1_epi32(shift));
            y.half[h] = _mm256_cvtepi32_ps(whole);
        }
        return y;
    }
};

#else  // NEON, and processors without any of the above

constexpr int VECTORS = 1, MAX_ROWS = 4;
using Reals = Floats;
inline Reals zeros() { return Reals{}; }
inline Reals load_halves(const uint16_t* p) {
    Reals y;
    for (int i = 0; i < LANES; ++i) {
        // With float16's exponent at float32's place, numbers are too small by 2^112; so are subnormal ones.
        const uint32_t bits = (uint32_t(p[i] & 0x8000) << 16) | (uint32_t(p[i] & 0x7fff) << 13);
        float small;
        std::memcpy(&small, &bits, 4);
        y[i] = small * 0x1p112f;
    }
    return y;
}
inline Reals times(Reals x, float y) { return x * y; }
inline void add_product(Reals& sum, Reals x, Reals y) { sum += x * y; }
inline void add_multiple(Reals& sum, Reals x, float y) { sum += x * y; }
inline void put(Reals x, float* y) { std::memcpy(y, &x, sizeof x); }

template <int BITS>
struct Dot {
    static constexpr int32_t MIDDLE = BITS == 8 ? 0 : 8;
    struct Weights {
        int8_t each[LANES * QUAD];
    };
    struct Sums {
        int32_t each[LANES];
    };
    static Sums start(int32_t shift) {
        Sums sums;
        std::fill(sums.each, sums.each + LANES, MIDDLE == 0 ? 0 : shift);
        return sums;
    }
    static void load(const uint8_t* p, Weights* quads) {
        for (int i = 0; i < LANES * QUAD; ++i) {
            quads[0].each[i] = int8_t(BITS == 8 ? p[i] : p[i] & 15);
            if (BITS == 4) quads[1].each[i] = int8_t(p[i] >> 4);
        }
    }
    static void add(Sums& sums, const Weights& weights, int32_t quad) {
#if defined(__ARM_FEATURE_DOTPROD)
        const int8x16_t inputs = vreinterpretq_s8_s32(vdupq_n_s32(quad));
        for (int i = 0; i < LANES; i += 4)
            vst1q_s32(sums.each + i, vdotq_s32(vld1q_s32(sums.each + i), vld1q_s8(weights.each + QUAD * i), inputs));
#else
        int8_t inputs[QUAD];
        std::memcpy(inputs, &quad, QUAD);
        for (int i = 0; i < LANES; ++i)
            for (int j = 0; j < QUAD; ++j) sums.each[i] += weights.each[QUAD * i + j] * inputs[j];
#endif
    }
    static Reals finish(const Sums& sums, int32_t) {
        Reals y;
        for (int i = 0; i < LANES; ++i) y[i] = float(sums.each[i]);
        return y;
    }
};

#endif

constexpr int64_t WIDTH = VECTORS * LANES;  // outputs of a panel

}  // namespace

// A matrix and one product with it; `library.py` has the same fields.
struct GroupedCall {
    const uint8_t* levels;
    const uint16_t* scales;
    const uint16_t* offsets;  // or null
    const float* bias;        // [N] or null
    const bf16* x;            // [T, K]
    bf16* out;                // [T, N]
    int64_t num_tokens, num_out, num_in, bits;
    int64_t block, num_groups, blocks_per_group;  // inputs of a block; zeros fill the last one
    float unit;                                   // multiplies scales and offsets
};

namespace {

// Rows of x, rounded, in tiles of MAX_ROWS rows.
struct Rounded {
    std::vector<int8_t> levels;   // [tiles, blocks, MAX_ROWS, block]
    std::vector<float> scales;    // [tiles, blocks, MAX_ROWS]
    std::vector<int32_t> shifts;  // [tiles, blocks, MAX_ROWS]: -MIDDLE × (sum of the block's levels)
    std::vector<float> totals;    // [tiles, blocks, MAX_ROWS]: sum of the block's levels × scale
};

// Round `count` inputs of one block. A block that holds NaN or infinity gets a scale that is not finite.
int32_t round_block(const bf16* x, int64_t count, int64_t block, int8_t* levels, float* scale) {
    float exact[MAX_BLOCK] = {};
    int32_t peak_bits = 0;
    if (count == MAX_BLOCK)
        for (int64_t i = 0; i < MAX_BLOCK; ++i) exact[i] = widen(x[i]);
    else
        for (int64_t i = 0; i < count; ++i) exact[i] = widen(x[i]);
    for (int64_t i = 0; i < MAX_BLOCK; ++i) {
        int32_t bits;
        std::memcpy(&bits, exact + i, 4);
        bits &= 0x7fffffff;
        peak_bits = bits > peak_bits ? bits : peak_bits;  // NaN and infinity are larger than all numbers
    }
    float peak;
    std::memcpy(&peak, &peak_bits, 4);
    const bool is_finite = peak_bits < 0x7f800000, is_zero = peak_bits < 0x02000000;  // below 2^-123: 127 / peak overflows
    const float factor = is_finite && !is_zero ? 127.0f / peak : 0.0f;
    *scale = is_zero ? 0.0f : peak / 127.0f;
    int8_t rounded[MAX_BLOCK];
    int32_t sum = 0;
    for (int64_t i = 0; i < MAX_BLOCK; ++i) {
        const float shifted = exact[i] * factor + 12582912.0f;  // 1.5 × 2^23: the low bits are the nearest integer
        int32_t level;
        std::memcpy(&level, &shifted, 4);
        level = is_finite ? level - 0x4b400000 : 0;
        rounded[i] = int8_t(level);
        sum += level;
    }
    if (block == MAX_BLOCK)
        std::memcpy(levels, rounded, MAX_BLOCK);
    else
        std::memcpy(levels, rounded, block);
    return sum;
}

void round_row(const GroupedCall& call, int64_t token, Rounded& to) {
    const int64_t block = call.block, num_blocks = (call.num_in + block - 1) / block;
    const int32_t middle = call.bits == 4 ? Dot<4>::MIDDLE : Dot<8>::MIDDLE;
    const bf16* x = call.x + token * call.num_in;
    for (int64_t b = 0; b < num_blocks; ++b) {
        const int64_t at = (token / MAX_ROWS * num_blocks + b) * MAX_ROWS + token % MAX_ROWS;
        const int64_t count = std::min(block, call.num_in - b * block);
        const int32_t sum = round_block(x + b * block, count, block, to.levels.data() + at * block, &to.scales[at]);
        to.shifts[at] = -middle * sum;
        to.totals[at] = float(sum) * to.scales[at];
    }
}

// The products of ROWS rows of one tile, from `token` on, with the outputs of a panel. BLOCK is the size of a block, or 0
// if it is only known at run time.
template <int BITS, int BLOCK, int ROWS>
void multiply(const GroupedCall& call, const Rounded& x, int64_t token, int64_t panel, float (*out)[WIDTH]) {
    constexpr int QUADS = BITS == 8 ? 1 : 2;  // in the 64 bytes of a load
    const int64_t block = BLOCK ? BLOCK : call.block, num_blocks = (call.num_in + block - 1) / block;
    const uint8_t* weights = call.levels + panel * num_blocks * block * WIDTH / QUADS;
    const uint16_t* scales = call.scales + panel * call.num_groups * WIDTH;
    const uint16_t* offsets = call.offsets ? call.offsets + panel * call.num_groups * WIDTH : nullptr;
    const int64_t first = token / MAX_ROWS * num_blocks * MAX_ROWS + token % MAX_ROWS;
    const int8_t* inputs = x.levels.data() + first * block;
    const float *x_scales = x.scales.data() + first, *x_totals = x.totals.data() + first;
    const int32_t* shifts = x.shifts.data() + first;
    // Loops over rows and vectors are unrolled, so that GCC keeps the sums in registers.
    Reals whole[ROWS * VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * VECTORS; ++i) whole[i] = zeros();
    for (int64_t g = 0, b = 0; g < call.num_groups; ++g, scales += WIDTH) {
        Reals scale[VECTORS], offset[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            scale[v] = load_halves(scales + v * LANES);
            offset[v] = offsets ? load_halves(offsets + g * WIDTH + v * LANES) : zeros();
        }
        for (const int64_t end = std::min(b + call.blocks_per_group, num_blocks); b < end; ++b) {
            typename Dot<BITS>::Sums sums[ROWS * VECTORS];
#pragma GCC unroll 16
            for (int i = 0; i < ROWS * VECTORS; ++i) sums[i] = Dot<BITS>::start(shifts[i / VECTORS]);
            for (int64_t k = 0; k < block; k += QUADS * QUAD, weights += WIDTH * QUAD) {
                typename Dot<BITS>::Weights quads[VECTORS][QUADS];
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; ++v) {
                    Dot<BITS>::load(weights + v * LANES * QUAD, quads[v]);
                    if (ROWS <= 4) __builtin_prefetch(weights + v * LANES * QUAD + PREFETCH_BYTES);
                }
#pragma GCC unroll 2
                for (int q = 0; q < QUADS; ++q)
#pragma GCC unroll 8
                    for (int r = 0; r < ROWS; ++r) {
                        int32_t four;
                        std::memcpy(&four, inputs + r * block + k + q * QUAD, 4);
#pragma GCC unroll 4
                        for (int v = 0; v < VECTORS; ++v) Dot<BITS>::add(sums[r * VECTORS + v], quads[v][q], four);
                    }
            }
#pragma GCC unroll 16
            for (int i = 0; i < ROWS * VECTORS; ++i) {
                const int r = i / VECTORS, v = i % VECTORS;
                add_product(whole[i], Dot<BITS>::finish(sums[i], shifts[r]), times(scale[v], x_scales[r]));
            }
            if (offsets)
#pragma GCC unroll 16
                for (int i = 0; i < ROWS * VECTORS; ++i)
                    add_multiple(whole[i], offset[i % VECTORS], x_totals[i / VECTORS]);
            inputs += MAX_ROWS * block, x_scales += MAX_ROWS, x_totals += MAX_ROWS, shifts += MAX_ROWS;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * VECTORS; ++i) put(whole[i], out[i / VECTORS] + i % VECTORS * LANES);
}

template <int BITS, int BLOCK>
void multiply_panel(const GroupedCall& call, const Rounded& x, int64_t begin, int64_t end, int64_t panel) {
    const int64_t first = panel * WIDTH, count = std::min<int64_t>(WIDTH, call.num_out - first);
    float bias[WIDTH] = {}, sums[MAX_ROWS][WIDTH];
    if (call.bias) std::memcpy(bias, call.bias + first, count * sizeof(float));
    for (int64_t token = begin; token < end;) {
        const int64_t left = end - token, now = left >= MAX_ROWS ? MAX_ROWS : left >= 2 ? 2 : 1;
        switch (now) {
            case MAX_ROWS: multiply<BITS, BLOCK, MAX_ROWS>(call, x, token, panel, sums); break;
            case 2: multiply<BITS, BLOCK, 2>(call, x, token, panel, sums); break;
            default: multiply<BITS, BLOCK, 1>(call, x, token, panel, sums);
        }
        for (int64_t r = 0; r < now; ++r) {
            bf16* out = call.out + (token + r) * call.num_out + first;
            if (count == WIDTH)
                for (int64_t i = 0; i < WIDTH; ++i) narrow(sums[r][i] * call.unit + bias[i], out + i);
            else
                for (int64_t i = 0; i < count; ++i) narrow(sums[r][i] * call.unit + bias[i], out + i);
        }
        token += now;
    }
}

void linear(const GroupedCall& call) {
    static thread_local Rounded rounded;  // reused from call to call
    Rounded& x = rounded;
    const int64_t num_tokens = call.num_tokens, num_tiles = (num_tokens + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t num_panels = (call.num_out + WIDTH - 1) / WIDTH;
    const int64_t size = num_tiles * ((call.num_in + call.block - 1) / call.block) * MAX_ROWS;
    x.levels.resize(size * call.block), x.scales.resize(size), x.shifts.resize(size), x.totals.resize(size);
    const bool is_usual = call.block == MAX_BLOCK;
    const auto run = call.bits == 4 ? is_usual ? multiply_panel<4, MAX_BLOCK> : multiply_panel<4, 0>
                                    : is_usual ? multiply_panel<8, MAX_BLOCK> : multiply_panel<8, 0>;
    const int64_t at_once = std::max<int64_t>(LEVELS_AT_ONCE / call.num_in / MAX_ROWS, 1) * MAX_ROWS;
    if (num_tokens == 1) round_row(call, 0, x);
#pragma omp parallel if (num_tokens * call.num_out * call.num_in > ALONE)
    {
        if (num_tokens > 1) {
#pragma omp for schedule(static)
            for (int64_t token = 0; token < num_tokens; ++token) round_row(call, token, x);
        }
        for (int64_t begin = 0; begin < num_tokens; begin += at_once)
#pragma omp for schedule(static) nowait
            for (int64_t panel = 0; panel < num_panels; ++panel)
                run(call, x, begin, std::min(begin + at_once, num_tokens), panel);
    }
}

}  // namespace

extern "C" {

int64_t hearth_grouped_width() { return WIDTH; }

// Levels [N, K × bits / 8], unsigned, the even input of a byte in its low half -> `packed`, see the top of this file.
// `middle` is the level that stands for zero; the inputs of each output are filled up to `num_inputs` with it.
void hearth_grouped_pack(const uint8_t* levels, uint8_t* packed, int64_t bits, int64_t middle, int64_t num_out,
                         int64_t num_in, int64_t num_inputs) {
    const int64_t num_panels = (num_out + WIDTH - 1) / WIDTH, quads = bits == 8 ? 1 : 2;
#pragma omp parallel for if (num_out * num_in > ALONE)
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        uint8_t* to = packed + panel * num_inputs * WIDTH / quads;
        for (int64_t k = 0; k < num_inputs; k += quads * QUAD)
            for (int64_t n = panel * WIDTH; n < (panel + 1) * WIDTH; ++n)
                for (int64_t i = k; i < k + QUAD; ++i) {
                    const auto level = [&](int64_t at) -> uint8_t {
                        if (n >= num_out || at >= num_in) return uint8_t(middle);
                        if (bits == 8) return levels[n * num_in + at];
                        return levels[n * (num_in / 2) + at / 2] >> (at % 2 * 4) & 15;
                    };
                    *to++ = bits == 8 ? uint8_t(level(i) - middle) : uint8_t(level(i) | level(i + QUAD) << 4);
                }
    }
}

// The rows `ids` of the weight -> out [num_ids, K].
void hearth_grouped_rows(const GroupedCall* call, const int64_t* ids, float* out, int64_t num_ids) {
    const int64_t quads = call->bits == 8 ? 1 : 2, span = quads * QUAD;  // inputs in a row of a panel
    const int64_t num_inputs = (call->num_in + call->block - 1) / call->block * call->block;
    for (int64_t i = 0; i < num_ids; ++i, out += call->num_in) {
        const int64_t panel = ids[i] / WIDTH, place = ids[i] % WIDTH, lane = place % LANES;
        const uint8_t* levels = call->levels + panel * num_inputs * WIDTH / quads + place * QUAD;
        for (int64_t g = 0, k = 0; g < call->num_groups; ++g) {
            const int64_t group = (panel * call->num_groups + g) * WIDTH + place - lane;
            float scales[LANES], offsets[LANES] = {};
            put(load_halves(call->scales + group), scales);
            if (call->offsets) put(load_halves(call->offsets + group), offsets);
            const float scale = scales[lane] * call->unit, offset = offsets[lane] * call->unit;
            const int64_t end = std::min(k + call->blocks_per_group * call->block, call->num_in);
            for (; k < end; ++k) {
                const uint8_t byte = levels[k / span * WIDTH * QUAD + k % QUAD];
                const int level = quads == 1 ? int8_t(byte) : int(byte >> (k % span / QUAD * 4) & 15) - 8;
                out[k] = float(level) * scale + offset;
            }
        }
    }
}

void hearth_grouped_linear(const GroupedCall* call) { linear(*call); }
}
