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
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "numbers.h"

namespace {

// So that what is written for both kinds of numbers takes float32 as it is.
inline float widen(float x) { return x; }
inline void narrow(float x, float* y) { *y = x; }

inline Floats load(const float* p) {
    Floats x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
inline Floats load(const bf16* p) {
    Halves x;
    std::memcpy(&x, p, sizeof x);
    Bits bits = __builtin_convertvector(x, Bits) << 16;
    Floats y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
}

inline void store(Floats x, float* p) { std::memcpy(p, &x, sizeof x); }
inline void store(Floats x, bf16* p) {  // as `narrow`
    Bits bits, is_nan = (Bits)(x != x);
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Halves rounded = __builtin_convertvector((bits & ~is_nan) | (is_nan & 0x7fc0), Halves);
    std::memcpy(p, &rounded, sizeof rounded);
}

inline Floats all(float x) { return Floats{} + x; }

inline float sum(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += x[i];
    return total;
#endif
}

// The sums of four vectors.
inline void sum4(const Floats* x, float* y) {
#if defined(__AVX512F__)
    __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 abcd = _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(y, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
    for (int i = 0; i < 4; ++i) y[i] = sum(x[i]);
#endif
}

// ---------------------------------------------------------------------------------------------------------- norms

template <class Out>
void rms_norm(const float* x, const float* weight, Out* out, int64_t num_tokens, int64_t width, float eps) {
#pragma omp parallel for if (num_tokens * width > ALONE)
    for (int64_t t = 0; t < num_tokens; ++t) {
        const float* row = x + t * width;
        Out* to = out + t * width;
        Floats squares[4] = {};
        int64_t i = 0;
        for (; i + 4 * LANES <= width; i += 4 * LANES)
            for (int j = 0; j < 4; ++j) {
                Floats v = load(row + i + j * LANES);
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
                Floats x = load(a + i), y = load(b + i), cosine = load(c + i), sine = load(s + i);
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
#if defined(__AVX512F__)
            Floats g = load(gate + i);
            Floats size = g < 0.0f ? g : -g;  // -|g|
            Floats e = exponential<Floats, Ints>(size);
            Floats numerator = g < 0.0f ? g * e : g;  // g e^g / (1 + e^g) or g / (1 + e^-g)
            Floats y = numerator / (1.0f + e) * load(up + i);
            store(y, to + i);
#else
            // A loop over single numbers: GCC splits comparisons of vectors that are wider than registers.
            float y[LANES];
            for (int j = 0; j < LANES; ++j) {
                const float g = widen(gate[i + j]), e = exponential<float, int32_t>(g < 0.0f ? g : -g);
                y[j] = (g < 0.0f ? g * e : g) / (1.0f + e) * widen(up[i + j]);
            }
            for (int j = 0; j < LANES; ++j) narrow(y[j], to + i + j);
#endif
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

// ------------------------------------------------------------------------------------------------------ attention

// What attention needs of a layer and of a step; `library.py` has the same fields.
struct AttentionCall {
    const void* qkv;  // [T, (H + planes G) D], rotated
    void* kv;         // the layer's pool [slots, planes G D]
    void* out;        // [T, H × value size]
    const int64_t* slots;         // [T], where each token's own keys and values go
    const int32_t* block_tables;  // [R, table width]
    const int32_t* context_lens;  // [R], the newest token included
    const int32_t* query_starts;  // [R + 1], where each row's tokens begin in T
    const float* sinks;           // [H] or null
    int64_t num_rows, qkv_stride, table_stride, block_size;
    int64_t num_heads, num_kv_heads, head_dim, value_dim, kv_width, value_offset;
    int64_t window, chunk;  // how far a token sees; 0: not limited so
    float scale, softcap;   // softcap 0: none
};

namespace {

constexpr int64_t TILE = 32;  // tokens of a row that one thread takes at once

struct Query {
    int64_t token, head;
    int64_t first, last;  // of the positions that it sees, `last` excluded
};

// Scores of NQ queries [NQ, D] (float32) over keys, into scores [NQ, stride].
template <int NQ, class E>
void score(const float* query, const E* const* keys, int64_t num_keys, int64_t head_dim, float* scores,
           int64_t stride) {
    const int64_t whole = head_dim / LANES * LANES;
    float four[4];
    for (int64_t k = 0; k < num_keys; k += 4) {
        const E* key[4];
        for (int j = 0; j < 4; ++j) key[j] = keys[std::min(k + j, num_keys - 1)];
        Floats sums[NQ][4] = {};
        for (int64_t d = 0; d < whole; d += LANES) {
            Floats part[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) part[j] = load(key[j] + d);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) {
                Floats wanted = load(query + q * head_dim + d);
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j) sums[q][j] += wanted * part[j];
            }
        }
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) {
            sum4(sums[q], four);
            for (int j = 0; j < 4; ++j) {
                for (int64_t d = whole; d < head_dim; ++d) four[j] += query[q * head_dim + d] * widen(key[j][d]);
                if (k + j < num_keys) scores[q * stride + k + j] = four[j];
            }
        }
    }
}

// Mixes of NQ queries: weights [NQ, stride] over values, NV vectors of the head from `first` on, into out[q].
template <int NQ, int NV, class E>
void mix(const float* weights, int64_t stride, const E* const* values, int64_t num_keys, int64_t first, E* const* out,
         const float* shares) {
    Floats sums[NQ][NV] = {};
    for (int64_t k = 0; k < num_keys; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            Floats one = load(values[k] + first + v * LANES);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) sums[q][v] += one * weights[q * stride + k];
        }
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) store(sums[q][v] * shares[q], out[q] + first + v * LANES);
}

// Scores [stride] of one query -> unnormalized weights; returns what makes them sum to 1, the sink's share left out.
inline float weigh(float* scores, int64_t num_keys, int64_t stride, const Query& query, int64_t first, float softcap,
                   const float* sinks) {
    if (softcap > 0)
        for (int64_t k = 0; k < num_keys; ++k) scores[k] = std::tanh(scores[k] / softcap) * softcap;
    for (int64_t k = 0; k < query.first - first; ++k) scores[k] = -INFINITY;
    for (int64_t k = query.last - first; k < stride; ++k) scores[k] = -INFINITY;
    Floats highest = all(-INFINITY);
    for (int64_t k = 0; k < stride; k += LANES) {
        Floats x = load(scores + k);
        highest = x > highest ? x : highest;
    }
    float peak = highest[0];
    for (int j = 1; j < LANES; ++j) peak = highest[j] > peak ? highest[j] : peak;
    float total = 0;
    if (sinks) {
        peak = sinks[query.head] > peak ? sinks[query.head] : peak;
        total = std::exp(sinks[query.head] - peak);
    }
    Floats totals = {};
    for (int64_t k = 0; k < stride; k += LANES) {
#if defined(__AVX512F__)
        Floats x = exponential<Floats, Ints>(load(scores + k) - peak);
        store(x, scores + k);
#else
        for (int j = 0; j < LANES; ++j) scores[k + j] = exponential<float, int32_t>(scores[k + j] - peak);
        Floats x = load(scores + k);
#endif
        totals += x;
    }
    return 1.0f / (total + sum(totals));
}

// NQ queries of one KV head over the positions that any of them sees; places[0] is that of position `base`.
template <int NQ, class E>
void attend_queries(const AttentionCall& call, const Query* queries, const E* const* places, int64_t num_places,
                    int64_t base, std::vector<float>& room) {
    const int64_t head_dim = call.head_dim, value_dim = call.value_dim;
    int64_t first = queries[0].first, last = queries[0].last;
    for (int q = 1; q < NQ; ++q) first = std::min(first, queries[q].first), last = std::max(last, queries[q].last);
    first = first / LANES * LANES;  // so that a position has its lane in every sum, whatever is beside it
    const int64_t num_keys = last - first, stride = (num_keys + LANES - 1) / LANES * LANES;
    const E* const* keys = places + (first - base);
    const E* const* values = keys + num_places;
    room.resize(NQ * (stride + head_dim));
    float *scores = room.data(), *exact = scores + NQ * stride, shares[NQ];
    E* out[NQ];
    for (int q = 0; q < NQ; ++q) {
        const E* query = static_cast<const E*>(call.qkv) + queries[q].token * call.qkv_stride +
                         queries[q].head * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) exact[q * head_dim + d] = widen(query[d]) * call.scale;
        out[q] = static_cast<E*>(call.out) + (queries[q].token * call.num_heads + queries[q].head) * value_dim;
    }
    score<NQ>(exact, keys, num_keys, head_dim, scores, stride);
    for (int q = 0; q < NQ; ++q)
        shares[q] = weigh(scores + q * stride, num_keys, stride, queries[q], first, call.softcap, call.sinks);
    const int64_t whole = value_dim / LANES * LANES;
    int64_t done = 0;
    for (; done + 4 * LANES <= whole; done += 4 * LANES)
        mix<NQ, 4>(scores, stride, values, num_keys, done, out, shares);
    const int64_t left = (whole - done) / LANES;
    if (left == 3) mix<NQ, 3>(scores, stride, values, num_keys, done, out, shares);
    if (left == 2) mix<NQ, 2>(scores, stride, values, num_keys, done, out, shares);
    if (left == 1) mix<NQ, 1>(scores, stride, values, num_keys, done, out, shares);
    for (int q = 0; q < NQ; ++q)
        for (int64_t d = whole; d < value_dim; ++d) {
            float y = 0;
            for (int64_t k = 0; k < num_keys; ++k) y += scores[q * stride + k] * widen(values[k][d]);
            narrow(y * shares[q], out[q] + d);
        }
}

#if defined(__AVX512F__)
// Many queries of one KV head: keys are turned, values widened, once for all of them, a block that the first cache holds
// at a time. Every sum has the terms and the order that `attend_queries` gives it, so the bits are the same.

constexpr int64_t MANY_QUERIES = 16;
constexpr int64_t SCORES_AT_ONCE = 1 << 19;  // floats that a thread keeps
constexpr int64_t BLOCK_FLOATS = 1 << 12;    // of turned keys or widened values

inline int64_t block_keys(int64_t width) {  // a multiple of LANES
    return std::max<int64_t>(LANES, std::min<int64_t>(64, BLOCK_FLOATS / width / LANES * LANES));
}

// 16 vectors, turned: what was lane j of vector i becomes lane i of vector j.
inline void turn(Floats* x) {
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
        x[i] = (Floats)_mm512_shuffle_f32x4(low, high, 0x88);
        x[i + 8] = (Floats)_mm512_shuffle_f32x4(low, high, 0xdd);
        low = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd), high = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        x[i + 4] = (Floats)_mm512_shuffle_f32x4(low, high, 0x88);
        x[i + 12] = (Floats)_mm512_shuffle_f32x4(low, high, 0xdd);
    }
}

// Keys of `num_keys` positions -> turned [D, stride]; behind the last, that is repeated.
template <class E>
void turn_keys(const E* const* keys, int64_t num_keys, int64_t head_dim, int64_t stride, float* turned) {
    const int64_t whole = head_dim / LANES * LANES;
    Floats part[LANES];
    for (int64_t k = 0; k < num_keys; k += LANES) {
        for (int64_t d = 0; d < whole; d += LANES) {
            for (int64_t j = 0; j < LANES; ++j) part[j] = load(keys[std::min(k + j, num_keys - 1)] + d);
            turn(part);
            for (int64_t j = 0; j < LANES; ++j) store(part[j], turned + (d + j) * stride + k);
        }
        for (int64_t d = whole; d < head_dim; ++d)
            for (int64_t j = 0; j < LANES; ++j)
                turned[d * stride + k + j] = widen(keys[std::min(k + j, num_keys - 1)][d]);
    }
}

// Scores of NQ queries [NQ, D] over 16 turned keys. What is lane j of a sum in `score` is vector j here, and they are
// added as `sum4` adds lanes.
template <int NQ>
inline void score_turned(const float* query, int64_t head_dim, const float* turned, int64_t stride,
                         float* const* scores) {
    const int64_t whole = head_dim / LANES * LANES;
    auto lane = [&](int64_t j, Floats* sums) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sums[q] = Floats{};
        for (int64_t d = j; d < whole; d += LANES) {
            Floats key = load(turned + d * stride);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) sums[q] += query[q * head_dim + d] * key;
        }
    };
    auto four = [&](int64_t j, Floats* sums) __attribute__((always_inline)) {
        Floats even[NQ], odd[NQ], more[NQ];
        lane(j, even), lane(j + 2, more);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) even[q] += more[q];
        lane(j + 1, odd), lane(j + 3, more);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sums[q] = even[q] + (odd[q] + more[q]);
    };
    Floats sums[NQ], others[NQ], more[NQ];
    four(0, sums), four(8, more);
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) sums[q] += more[q];
    four(4, others), four(12, more);
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) sums[q] += others[q] + more[q];
    for (int64_t d = whole; d < head_dim; ++d) {
        Floats key = load(turned + d * stride);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sums[q] += query[q * head_dim + d] * key;
    }
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) store(sums[q], scores[q]);
}

// Adds to sums [NQ, width] the weighted values [keys, width], the NV vectors from `first` on.
template <int NQ, int NV>
inline void mix_widened(const float* const* weights, const float* values, int64_t num_keys, int64_t width,
                        int64_t first, float* const* sums) {
    Floats kept[NQ][NV];
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) kept[q][v] = load(sums[q] + first + v * LANES);
    for (int64_t k = 0; k < num_keys; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            Floats one = load(values + k * width + first + v * LANES);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) kept[q][v] += one * weights[q][k];
        }
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) store(kept[q][v], sums[q] + first + v * LANES);
}

template <int NQ>
inline void mix_whole(const float* const* weights, const float* values, int64_t num_keys, int64_t width,
                      float* const* sums) {
    int64_t done = 0;
    for (; done + 4 * LANES <= width; done += 4 * LANES) mix_widened<NQ, 4>(weights, values, num_keys, width, done, sums);
    for (; done < width; done += LANES) mix_widened<NQ, 1>(weights, values, num_keys, width, done, sums);
}

inline void mix_all(const float* const* weights, const float* values, int64_t num_keys, int64_t width,
                    float* const* sums, int64_t num_queries) {
    if (num_queries == 4) mix_whole<4>(weights, values, num_keys, width, sums);
    if (num_queries == 3) mix_whole<3>(weights, values, num_keys, width, sums);
    if (num_queries == 2) mix_whole<2>(weights, values, num_keys, width, sums);
    if (num_queries == 1) mix_whole<1>(weights, values, num_keys, width, sums);
}

// Four queries that neighbor each other (the last of all may be repeated) and the positions that any of them sees.
struct Four {
    int64_t queries[4];
    int64_t first, last;  // `first` a multiple of LANES
};

// All `queries`, whose scores over `stride` positions from `start` on fit in the room together.
template <class E>
void attend_block(const AttentionCall& call, const Query* queries, int64_t num_queries, const E* const* places,
                  int64_t num_places, int64_t base, std::vector<float>& room) {
    const int64_t head_dim = call.head_dim, value_dim = call.value_dim, whole = value_dim / LANES * LANES;
    std::vector<Four> fours;
    int64_t start = queries[0].first, last = queries[0].last;
    for (int64_t at = 0; at < num_queries; at += 4) {
        Four four = {{}, queries[at].first, queries[at].last};
        for (int64_t q = 0; q < 4; ++q) {
            four.queries[q] = std::min(at + q, num_queries - 1);
            four.first = std::min(four.first, queries[four.queries[q]].first);
            four.last = std::max(four.last, queries[four.queries[q]].last);
        }
        four.first = four.first / LANES * LANES;
        start = std::min(start, four.first), last = std::max(last, four.last);
        fours.push_back(four);
    }
    start = start / LANES * LANES;
    const int64_t stride = (last - start + LANES - 1) / LANES * LANES;
    const int64_t keys_at_once = block_keys(head_dim), values_at_once = block_keys(std::max<int64_t>(whole, 1));
    const int64_t block = std::max(keys_at_once * head_dim, values_at_once * std::max<int64_t>(whole, 1));
    room.resize(num_queries * (stride + head_dim + whole + 1) + block + LANES);
    float *scores = room.data(), *exact = scores + num_queries * stride, *sums = exact + num_queries * head_dim;
    float *shares = sums + num_queries * whole, *shared = shares + num_queries;
    const E* const* keys = places + (start - base);
    const E* const* values = keys + num_places;
    for (int64_t q = 0; q < num_queries; ++q) {
        const E* query = static_cast<const E*>(call.qkv) + queries[q].token * call.qkv_stride +
                         queries[q].head * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) exact[q * head_dim + d] = widen(query[d]) * call.scale;
    }
    std::memset(sums, 0, num_queries * whole * sizeof(float));
    for (int64_t k = 0; k < last - start; k += keys_at_once) {
        const int64_t num_keys = std::min(keys_at_once, last - start - k);
        turn_keys(keys + k, num_keys, head_dim, keys_at_once, shared);
        for (const Four& four : fours) {
            const int64_t from = std::max(four.first - start, k), until = std::min(four.last - start, k + num_keys);
            const float* query = exact + four.queries[0] * head_dim;
            const int64_t num_own = std::min<int64_t>(4, num_queries - four.queries[0]);
            for (int64_t at = from; at < until; at += LANES) {
                float* to[4];
                for (int q = 0; q < 4; ++q) to[q] = scores + four.queries[q] * stride + at;
                const float* turned = shared + (at - k);
                if (num_own == 4) score_turned<4>(query, head_dim, turned, keys_at_once, to);
                if (num_own == 3) score_turned<3>(query, head_dim, turned, keys_at_once, to);
                if (num_own == 2) score_turned<2>(query, head_dim, turned, keys_at_once, to);
                if (num_own == 1) score_turned<1>(query, head_dim, turned, keys_at_once, to);
            }
        }
    }
    for (const Four& four : fours)
        for (int64_t q = four.queries[0]; q <= four.queries[3]; ++q) {
            const int64_t num_keys = four.last - four.first, seen = (num_keys + LANES - 1) / LANES * LANES;
            shares[q] = weigh(scores + q * stride + (four.first - start), num_keys, seen, queries[q], four.first,
                              call.softcap, call.sinks);
        }
    for (int64_t k = 0; whole && k < last - start; k += values_at_once) {
        const int64_t num_keys = std::min(values_at_once, last - start - k);
        for (int64_t at = 0; at < num_keys; ++at)
            for (int64_t d = 0; d < whole; d += LANES) store(load(values[k + at] + d), shared + at * whole + d);
        for (const Four& four : fours) {
            const int64_t from = std::max(four.first - start, k), until = std::min(four.last - start, k + num_keys);
            if (from >= until) continue;
            const float* weights[4];
            float* to[4];
            for (int q = 0; q < 4; ++q) {
                weights[q] = scores + four.queries[q] * stride + from;
                to[q] = sums + four.queries[q] * whole;
            }
            const float* widened = shared + (from - k) * whole;
            const int64_t num_own = std::min<int64_t>(4, num_queries - four.queries[0]);
            mix_all(weights, widened, until - from, whole, to, num_own);
        }
    }
    for (const Four& four : fours)
        for (int64_t q = four.queries[0]; q <= four.queries[3]; ++q) {
            E* out = static_cast<E*>(call.out) + (queries[q].token * call.num_heads + queries[q].head) * value_dim;
            for (int64_t d = 0; d < whole; d += LANES) store(load(sums + q * whole + d) * shares[q], out + d);
            const float* weights = scores + q * stride;
            for (int64_t d = whole; d < value_dim; ++d) {
                float y = 0;
                for (int64_t k = four.first - start; k < four.last - start; ++k) y += weights[k] * widen(values[k][d]);
                narrow(y * shares[q], out + d);
            }
        }
}
#endif

// Tokens `begin` to `end` (excluded) of one row, all queries of one KV head.
template <class E>
void attend_tile(const AttentionCall& call, int64_t row, int64_t begin, int64_t end, int64_t kv_head,
                 std::vector<const E*>& places, std::vector<Query>& queries, std::vector<float>& room) {
    const int64_t group = call.num_heads / call.num_kv_heads, block_size = call.block_size;
    const int64_t offset = call.context_lens[row] - call.query_starts[row + 1];  // of a token's position
    queries.clear();
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int64_t token = begin; token < end; ++token) {
            const int64_t position = token + offset;
            int64_t first = call.chunk ? position - position % call.chunk : 0;
            if (call.window) first = std::max(first, position + 1 - call.window);
            queries.push_back({token, head, first, position + 1});
        }
    const int64_t base = queries.front().first / LANES * LANES, num_places = end + offset - base;
    const int32_t* table = call.block_tables + row * call.table_stride;
    places.resize(2 * num_places);  // keys, then values
    for (int64_t at = 0; at < num_places;) {
        const int64_t position = base + at, within = position % block_size;
        const int64_t slot = int64_t(table[position / block_size]) * block_size + within;
        const E* place = static_cast<const E*>(call.kv) + slot * call.kv_width + kv_head * call.head_dim;
        const int64_t stop = std::min(num_places, at + block_size - within);
        for (; at < stop; ++at, place += call.kv_width) {
            places[at] = place;
            places[num_places + at] = place + call.value_offset;
        }
    }
    const Query* query = queries.data();
    int64_t left = queries.size();
#if defined(__AVX512F__)
    if (left >= MANY_QUERIES) {
        const int64_t at_once = std::max(MANY_QUERIES, SCORES_AT_ONCE / num_places / 4 * 4);
        for (; left > 0; left -= at_once, query += at_once)
            attend_block(call, query, std::min(left, at_once), places.data(), num_places, base, room);
        return;
    }
#endif
    for (; left >= 4; left -= 4, query += 4) attend_queries<4>(call, query, places.data(), num_places, base, room);
    if (left == 3) attend_queries<3>(call, query, places.data(), num_places, base, room);
    if (left == 2) attend_queries<2>(call, query, places.data(), num_places, base, room);
    if (left == 1) attend_queries<1>(call, query, places.data(), num_places, base, room);
}

template <class E>
void attend(const AttentionCall& call) {
    const int64_t query_width = call.num_heads * call.head_dim, num_tokens = call.query_starts[call.num_rows];
    int64_t work = 0;
    std::vector<int64_t> tiles;  // row and first token of each
    for (int64_t row = 0; row < call.num_rows; ++row) {
        const int64_t begin = call.query_starts[row], end = call.query_starts[row + 1];
        work += (end - begin) * call.context_lens[row] * query_width;
        for (int64_t token = begin; token < end; token += TILE) tiles.insert(tiles.end(), {row, token});
    }
    const int64_t num_tiles = tiles.size() / 2;
#pragma omp parallel if (work > ALONE)
    {
        std::vector<const E*> places;
        std::vector<Query> queries;
        std::vector<float> room;
#pragma omp for
        for (int64_t token = 0; token < num_tokens; ++token) {
            const E* from = static_cast<const E*>(call.qkv) + token * call.qkv_stride + query_width;
            std::memcpy(static_cast<E*>(call.kv) + call.slots[token] * call.kv_width, from, call.kv_width * sizeof(E));
        }
#pragma omp for collapse(2) schedule(dynamic, 4)
        for (int64_t tile = 0; tile < num_tiles; ++tile)
            for (int64_t head = 0; head < call.num_kv_heads; ++head) {
                const int64_t row = tiles[2 * tile], begin = tiles[2 * tile + 1];
                const int64_t end = std::min<int64_t>(begin + TILE, call.query_starts[row + 1]);
                attend_tile<E>(call, row, begin, end, head, places, queries, room);
            }
    }
}

// --------------------------------------------------------------------------------------------------------- linear

// Outputs in panels of WIDTH, inputs in pairs: packed[panel][k / 2][WIDTH][2], zeros where there is no output.
constexpr int NUM_VECTORS = 3;
constexpr int64_t WIDTH = NUM_VECTORS * LANES;
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

#elif defined(__AVX2__) && defined(__FMA__)
// The same without bfloat16 instructions: inputs are float32, and weights are widened in registers, where the even input
// of a pair is the low half of 32 bits. Sums have the same order for every number of rows.
template <int ROWS, int VECTORS>
void multiply(const float* x, int64_t num_in, const bf16* panel, const bf16* bias, bf16* out, int64_t out_stride,
              int64_t num_out) {
    __m256 sums[ROWS * VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < ROWS * VECTORS; ++i) sums[i] = _mm256_setzero_ps();
    const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000));
    for (int64_t k = 0; k < num_in; k += 2, panel += 2 * WIDTH) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; ++odd) {
            // Whatever is fewer, weights or inputs, waits in registers for the other.
            __m256 waiting[std::min(ROWS, VECTORS)];
            const auto weights = [&](int v) {
                const __m256i pairs = _mm256_loadu_si256((const __m256i*)(panel + v * LANES));
                return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, upper) : _mm256_slli_epi32(pairs, 16));
            };
            const auto input = [&](int r) { return _mm256_broadcast_ss(x + r * num_in + k + odd); };
            if (VECTORS < ROWS) {
#pragma GCC unroll 6
                for (int v = 0; v < VECTORS; ++v) waiting[v] = weights(v);
#pragma GCC unroll 6
                for (int r = 0; r < ROWS; ++r) {
                    const __m256 all = input(r);
#pragma GCC unroll 6
                    for (int v = 0; v < VECTORS; ++v)
                        sums[r * VECTORS + v] = _mm256_fmadd_ps(waiting[v], all, sums[r * VECTORS + v]);
                }
            } else {
#pragma GCC unroll 6
                for (int r = 0; r < ROWS; ++r) waiting[r] = input(r);
#pragma GCC unroll 6
                for (int v = 0; v < VECTORS; ++v) {
                    const __m256 one = weights(v);
                    if (!odd) _mm_prefetch((const char*)(panel + v * LANES) + 4096, _MM_HINT_T0);
#pragma GCC unroll 6
                    for (int r = 0; r < ROWS; ++r)
                        sums[r * VECTORS + v] = _mm256_fmadd_ps(one, waiting[r], sums[r * VECTORS + v]);
                }
            }
        }
    }
    float results[ROWS * VECTORS * 8];
#pragma GCC unroll 12
    for (int i = 0; i < ROWS * VECTORS; ++i) _mm256_storeu_ps(results + 8 * i, sums[i]);
    const int64_t count = std::min<int64_t>(8 * VECTORS, num_out);
    for (int r = 0; r < ROWS; ++r)
        for (int64_t n = 0; n < count; ++n)
            narrow(results[8 * VECTORS * r + n] + (bias ? widen(bias[n]) : 0.0f), out + r * out_stride + n);
}

// Tiles of several rows have a part of a panel's outputs, so that all sums fit the registers.
template <int ROWS, int VECTORS>
void multiply_tile(const float* x, int64_t num_in, const bf16* panel, const bf16* bias, bf16* out, int64_t out_stride,
                   int64_t num_out) {
    for (int64_t first = 0; first < std::min(WIDTH, num_out); first += 8 * VECTORS)
        multiply<ROWS, VECTORS>(x, num_in, panel + 2 * first, bias ? bias + first : nullptr, out + first, out_stride,
                                num_out - first);
}

void multiply_rows(int64_t num_rows, const float* x, int64_t num_in, const bf16* panel, const bf16* bias, bf16* out,
                   int64_t out_stride, int64_t num_out) {
    while (num_rows > 0) {
        const int64_t now = num_rows >= 4 ? 4 : num_rows >= 2 ? 2 : 1;
        switch (now) {
            case 4: multiply_tile<4, 2>(x, num_in, panel, bias, out, out_stride, num_out); break;
            case 2: multiply_tile<2, 6>(x, num_in, panel, bias, out, out_stride, num_out); break;
            default: multiply_tile<1, 6>(x, num_in, panel, bias, out, out_stride, num_out);
        }
        num_rows -= now, x += now * num_in, out += now * out_stride;
    }
}
#endif

}  // namespace

extern "C" {

int hearth_has_linear() {
#if defined(__AVX512BF16__) || (defined(__AVX2__) && defined(__FMA__))
    return 1;
#else
    return 0;
#endif
}

int64_t hearth_packed_size(int64_t num_out, int64_t num_in) { return (num_out + WIDTH - 1) / WIDTH * WIDTH * num_in; }

// weight [N, K], rows `stride` apart, K even.
void hearth_pack(const bf16* weight, int64_t stride, bf16* packed, int64_t num_out, int64_t num_in) {
    const int64_t num_panels = (num_out + WIDTH - 1) / WIDTH;
#pragma omp parallel for if (num_out * num_in > ALONE)
    for (int64_t p = 0; p < num_panels; ++p) {
        bf16* to = packed + p * WIDTH * num_in;
        for (int64_t k = 0; k < num_in; k += 2)
            for (int64_t n = 0; n < WIDTH; ++n, to += 2) {
                const int64_t row = p * WIDTH + n;
                to[0] = row < num_out ? weight[row * stride + k] : bf16(0);
                to[1] = row < num_out ? weight[row * stride + k + 1] : bf16(0);
            }
    }
}

// out [T, N] = x [T, K] × packed + bias.
void hearth_linear(const bf16* x, const bf16* packed, const bf16* bias, bf16* out, int64_t num_tokens, int64_t num_out,
                   int64_t num_in) {
    const int64_t num_panels = (num_out + WIDTH - 1) / WIDTH;
#if defined(__AVX512BF16__)
#pragma omp parallel for schedule(static) if (num_tokens * num_out * num_in > ALONE)
    for (int64_t p = 0; p < num_panels; ++p) {
        const int64_t first = p * WIDTH;
        multiply_rows(num_tokens, x, num_in, packed + first * num_in, bias ? bias + first : nullptr, out + first,
                      num_out, num_in, num_out - first);
    }
#elif defined(__AVX2__) && defined(__FMA__)
    static thread_local std::vector<float> widened;  // reused from call to call
    widened.resize(num_tokens * num_in);
    float* exact = widened.data();
#pragma omp parallel if (num_tokens * num_out * num_in > ALONE)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < num_tokens; ++t)
            for (int64_t k = t * num_in; k < (t + 1) * num_in; ++k) exact[k] = widen(x[k]);
        for (int64_t begin = 0; begin < num_tokens; begin += ROWS_AT_ONCE)
#pragma omp for schedule(static) nowait
            for (int64_t p = 0; p < num_panels; ++p) {
                const int64_t first = p * WIDTH;
                multiply_rows(std::min(ROWS_AT_ONCE, num_tokens - begin), exact + begin * num_in, num_in,
                              packed + first * num_in, bias ? bias + first : nullptr, out + begin * num_out + first,
                              num_out, num_out - first);
            }
    }
#else
    (void)num_panels, (void)x, (void)packed, (void)bias, (void)out, (void)num_tokens, (void)num_out, (void)num_in;
#endif
}

void hearth_attend_f32(const AttentionCall* call) { attend<float>(*call); }
void hearth_attend_bf16(const AttentionCall* call) { attend<bf16>(*call); }

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
