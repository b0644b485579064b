// What low-rank adapters add to the outputs of a linear map: y += (x A) B for many tokens, each with its own A and B.
//
// Compiled together with kernels.cpp, under its rules: optional, over raw memory, every row's result its own. An adapter's
// numbers for a map lie in the order in which they are read, one map's behind the other's, so that a token is one pass
// over memory; up to TOKENS tokens of one adapter share it.
//
// Letters: n tokens, S adapters, C inputs, P changed parts of the map, r padded rank, H = P r hidden numbers.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "numbers.h"

struct LowRankCall {
    const void* memory;      // [S], `stride` numbers apart: A as [C / UNIT][H][UNIT], then B of each part, in blocks of
                             // LANES outputs (the last may have fewer): [r / UNIT][outputs][UNIT]
    const int32_t* slots;    // [n], which of the S; equal ones side by side
    const int64_t* tokens;   // [n], rows of x and y
    const int64_t* columns;  // [P, 2], first and last (excluded) column of y that a part adds to
    const void* x;           // [·, C], rows x_stride apart
    void* y;
    int64_t num_tokens, num_in, num_parts, rank, stride, x_stride, y_stride;
};

namespace {

constexpr int TOKENS = 4;
constexpr int VECTORS = 4;            // of hidden numbers at once
constexpr int64_t AHEAD = 4096;       // bytes that are fetched before they are needed

// Inputs that are taken in one step: 4 bytes.
template <class E>
constexpr int UNIT = 4 / sizeof(E);

// `lanes` words of 4 bytes, zeros behind them.
inline Bits load(const void* from, int lanes) {
#if defined(__AVX512F__)
    return (Bits)_mm512_maskz_loadu_epi32(__mmask16((1u << lanes) - 1), from);
#else
    Bits x = {};
    std::memcpy(&x, from, lanes * 4);
    return x;
#endif
}

// `lanes` numbers written, on top of those that are there if so wanted.
inline void store(Floats x, float* to, int lanes, bool is_added) {
    for (int i = 0; i < lanes; ++i) to[i] = is_added ? to[i] + x[i] : x[i];
}
inline void store(Floats x, bf16* to, int lanes, bool is_added) {
#if defined(__AVX512BF16__)
    const __mmask16 mask = __mmask16((1u << lanes) - 1);
    if (is_added) x += (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, to)), 16);
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    for (int i = 0; i < lanes; ++i) narrow(is_added ? widen(to[i]) + x[i] : x[i], to + i);
#endif
}

// sums + the products of a unit of inputs, the same one for all lanes.
inline Floats add(Floats sums, Bits weights, uint32_t unit, float) {
    float x;
    std::memcpy(&x, &unit, 4);
    return sums + (Floats)weights * x;
}
inline Floats add(Floats sums, Bits weights, uint32_t unit, bf16) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(int32_t(unit)));
#else
    uint32_t low = unit << 16, high = unit & 0xffff0000u;
    float first, second;
    std::memcpy(&first, &low, 4);
    std::memcpy(&second, &high, 4);
    return sums + (Floats)(weights << 16) * first + (Floats)(weights & 0xffff0000u) * second;
#endif
}

template <class E>
inline uint32_t unit_of(const E* x) {
    uint32_t unit;
    std::memcpy(&unit, x, 4);
    return unit;
}

inline void fetch(const void* from) { __builtin_prefetch(from, 0, 3); }

// V vectors of hidden numbers of N tokens. CHAINS sums are kept of each, so that none waits for another.
template <class E, int N, int V>
void shrink(const E* a, const E* const* x, E* hidden, int64_t num_in, int64_t num_hidden, int last_lanes) {
    constexpr int U = UNIT<E>, CHAINS = V == 1 ? 4 : V == 2 ? 2 : 1;
    Floats sums[CHAINS][N][V] = {};
    const auto step = [&](int chain, int64_t c, bool is_whole) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            const E* from = a + c * num_hidden + v * LANES * U;
            fetch(reinterpret_cast<const char*>(from) + AHEAD);
            const Bits weights = load(from, v + 1 < V ? LANES : last_lanes);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
                const uint32_t unit = is_whole ? unit_of(x[n] + c) : uint32_t(x[n][c]);  // the first half of a pair
                sums[chain][n][v] = add(sums[chain][n][v], weights, unit, E());
            }
        }
    };
    const int64_t whole = num_in / U * U;
    int64_t c = 0;
    for (; c + CHAINS * U <= whole; c += CHAINS * U)
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; ++chain) step(chain, c + chain * U, true);
    for (; c < whole; c += U) step(0, c, true);
    if (c < num_in) step(0, c, false);
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < V; ++v) {
            Floats total = sums[0][n][v];
            for (int chain = 1; chain < CHAINS; ++chain) total += sums[chain][n][v];
            store(total, hidden + n * num_hidden + v * LANES, v + 1 < V ? LANES : last_lanes, false);
        }
}

// What N tokens' hidden numbers of one part add to its columns. `next`: what is read behind `end`.
template <class E, int N>
const E* expand(const E* b, const E* hidden, int64_t hidden_stride, E* const* y, int64_t width, int64_t rank,
                const char* end, const char* next) {
    constexpr int U = UNIT<E>;
    for (int64_t first = 0; first < width; first += LANES) {
        const int lanes = int(std::min<int64_t>(LANES, width - first));
        const char* ahead = reinterpret_cast<const char*>(b) + AHEAD;
        if (ahead >= end) ahead = next + (ahead - end);
        Floats sums[N] = {};
        for (int64_t j = 0; j < rank; j += U, b += lanes * U, ahead += lanes * 4) {
            fetch(ahead);
            const Bits weights = load(b, lanes);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) sums[n] = add(sums[n], weights, unit_of(hidden + n * hidden_stride + j), E());
        }
        for (int n = 0; n < N; ++n) store(sums[n], y[n] + first, lanes, true);
    }
    return b;
}

// N tokens of the adapter at `memory`.
template <class E, int N>
void add_tile(const LowRankCall& call, const E* memory, const int64_t* tokens, const char* next) {
    constexpr int U = UNIT<E>, WIDEST = VECTORS * LANES;
    const int64_t num_hidden = call.num_parts * call.rank;
    thread_local std::vector<E> hidden;
    hidden.resize(TOKENS * num_hidden);
    const E* x[N];
    for (int n = 0; n < N; ++n) x[n] = static_cast<const E*>(call.x) + tokens[n] * call.x_stride;
    for (int64_t first = 0; first < num_hidden; first += WIDEST) {
        const int64_t columns = std::min<int64_t>(WIDEST, num_hidden - first), vectors = (columns + LANES - 1) / LANES;
        const int last_lanes = int(columns - (vectors - 1) * LANES);
        const auto run = [&](auto function) {
            function(memory + first * U, x, hidden.data() + first, call.num_in, num_hidden, last_lanes);
        };
        switch (vectors) {
            case 1: run(shrink<E, N, 1>); break;
            case 2: run(shrink<E, N, 2>); break;
            case 3: run(shrink<E, N, 3>); break;
            default: run(shrink<E, N, VECTORS>);
        }
    }
    const E* b = memory + (call.num_in + U - 1) / U * U * num_hidden;
    const E* end = b;
    for (int64_t p = 0; p < call.num_parts; ++p) end += call.rank * (call.columns[2 * p + 1] - call.columns[2 * p]);
    E* y[N];
    for (int64_t p = 0; p < call.num_parts; ++p) {
        const int64_t column = call.columns[2 * p], width = call.columns[2 * p + 1] - column;
        for (int n = 0; n < N; ++n) y[n] = static_cast<E*>(call.y) + tokens[n] * call.y_stride + column;
        b = expand<E, N>(b, hidden.data() + p * call.rank, num_hidden, y, width, call.rank,
                         reinterpret_cast<const char*>(end), next);
    }
}

template <class E>
void add_low_rank(const LowRankCall& call) {
    thread_local std::vector<int64_t> firsts;  // of each tile
    firsts.clear();
    int64_t size = call.num_in * call.num_parts * call.rank;
    for (int64_t p = 0; p < call.num_parts; ++p) size += call.rank * (call.columns[2 * p + 1] - call.columns[2 * p]);
    for (int64_t i = 0, count = 0; i < call.num_tokens; ++i, ++count)
        if (i == 0 || count == TOKENS || call.slots[i] != call.slots[i - 1]) firsts.push_back(i), count = 0;
    const int64_t num_tiles = firsts.size();
    const int64_t* const tiles = firsts.data();  // of this thread, not of those that help
#pragma omp parallel for schedule(dynamic, 1) if (call.num_tokens * size > ALONE)
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
        const int64_t first = tiles[tile], last = tile + 1 < num_tiles ? tiles[tile + 1] : call.num_tokens;
        const E* memory = static_cast<const E*>(call.memory);
        const E* own = memory + call.slots[first] * call.stride;
        // After the last tile comes the next map, whose numbers lie behind those of this one.
        const E* next = last < call.num_tokens ? memory + call.slots[last] * call.stride
                                               : memory + call.slots[0] * call.stride + size;
        const auto run = [&](auto function) {
            function(call, own, call.tokens + first, reinterpret_cast<const char*>(next));
        };
        switch (last - first) {
            case 1: run(add_tile<E, 1>); break;
            case 2: run(add_tile<E, 2>); break;
            case 3: run(add_tile<E, 3>); break;
            default: run(add_tile<E, TOKENS>);
        }
    }
}

}  // namespace

extern "C" {

void hearth_add_low_rank_f32(const LowRankCall* call) { add_low_rank<float>(*call); }
void hearth_add_low_rank_bf16(const LowRankCall* call) { add_low_rank<bf16>(*call); }
}
