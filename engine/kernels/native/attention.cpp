// Attention over the paged pool: rows of one token, prefill chunks and draft tokens alike.
//
// Compiled together with kernels.cpp, under its rules. A token's result is bitwise the same whether it is computed alone,
// with other tokens of its row or beside any other rows.
//
// Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

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

// Scores of NQ queries [NQ, D] (float32) over keys, NK at a time, into scores [NQ, stride]. NQ × NK is a multiple of 4.
template <int NQ, int NK, class E>
void score_some(const float* query, const E* const* keys, int64_t num_keys, int64_t head_dim, float* scores,
                int64_t stride) {
    const int64_t whole = head_dim / LANES * LANES;
    float results[NQ * NK];
    for (int64_t k = 0; k < num_keys; k += NK) {
        const E* key[NK];
        for (int j = 0; j < NK; ++j) key[j] = keys[std::min(k + j, num_keys - 1)];
        Vector sums[NQ * NK] = {};
        for (int64_t d = 0; d < whole; d += LANES) {
            Vector part[NK];
#pragma GCC unroll 4
            for (int j = 0; j < NK; ++j) part[j] = load(key[j] + d);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) {
                const Vector wanted = load(query + q * head_dim + d);
#pragma GCC unroll 4
                for (int j = 0; j < NK; ++j) sums[q * NK + j] += wanted * part[j];
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < NQ * NK; i += 4) sum4(sums + i, results + i);
        for (int q = 0; q < NQ; ++q)
            for (int j = 0; j < NK && k + j < num_keys; ++j) {
                float y = results[q * NK + j];
                for (int64_t d = whole; d < head_dim; ++d) y += query[q * head_dim + d] * widen(key[j][d]);
                scores[q * stride + k + j] = y;
            }
    }
}

template <int NQ, class E>
void score(const float* query, const E* const* keys, int64_t num_keys, int64_t head_dim, float* scores,
           int64_t stride) {
    if constexpr (NQ * 4 <= MAX_SUMS) {
        score_some<NQ, 4>(query, keys, num_keys, head_dim, scores, stride);
    } else {
        score_some<2, 2>(query, keys, num_keys, head_dim, scores, stride);
        if constexpr (NQ > 2)
            score<NQ - 2>(query + 2 * head_dim, keys, num_keys, head_dim, scores + 2 * stride, stride);
    }
}

// Mixes of NQ queries: weights [NQ, stride] over values, NV vectors of the head from `first` on, into out[q].
template <int NQ, int NV, class E>
void mix_some(const float* weights, int64_t stride, const E* const* values, int64_t num_keys, int64_t first,
              E* const* out, const float* shares) {
    Vector sums[NQ][NV] = {};
    for (int64_t k = 0; k < num_keys; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            const Vector one = load(values[k] + first + v * LANES);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) sums[q][v] += one * weights[q * stride + k];
        }
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) store(sums[q][v] * shares[q], out[q] + first + v * LANES);
}

// The same over `width` numbers of the head, a multiple of LANES.
template <int NQ, class E>
void mix(const float* weights, int64_t stride, const E* const* values, int64_t num_keys, int64_t width, E* const* out,
         const float* shares) {
    constexpr int NV = std::min(4, std::max(1, MAX_SUMS / NQ));
    int64_t done = 0;
    for (; done + NV * LANES <= width; done += NV * LANES)
        mix_some<NQ, NV>(weights, stride, values, num_keys, done, out, shares);
    for (; done < width; done += LANES) mix_some<NQ, 1>(weights, stride, values, num_keys, done, out, shares);
}

// Scores [stride] of one query -> unnormalized weights; returns what makes them sum to 1, the sink's share left out.
inline float weigh(float* scores, int64_t num_keys, int64_t stride, const Query& query, int64_t first, float softcap,
                   const float* sinks) {
    if (softcap > 0)
        for (int64_t k = 0; k < num_keys; ++k) scores[k] = std::tanh(scores[k] / softcap) * softcap;
    for (int64_t k = 0; k < query.first - first; ++k) scores[k] = -INFINITY;
    for (int64_t k = query.last - first; k < stride; ++k) scores[k] = -INFINITY;
    Vector highest = all(-INFINITY);
    for (int64_t k = 0; k < stride; k += LANES) highest = larger(load(scores + k), highest);
    float peak = largest(highest);
    float total = 0;
    if (sinks) {
        peak = sinks[query.head] > peak ? sinks[query.head] : peak;
        total = std::exp(sinks[query.head] - peak);
    }
    Vector totals = {};
    for (int64_t k = 0; k < stride; k += LANES) {
        const Vector x = exponentials(load(scores + k) - peak);
        store(x, scores + k);
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
    mix<NQ>(scores, stride, values, num_keys, whole, out, shares);
    for (int q = 0; q < NQ; ++q)
        for (int64_t d = whole; d < value_dim; ++d) {
            float y = 0;
            for (int64_t k = 0; k < num_keys; ++k) y += scores[q * stride + k] * widen(values[k][d]);
            narrow(y * shares[q], out[q] + d);
        }
}

// Many queries of one KV head: keys are turned, values widened, once for all of them, a block that the first cache holds
// at a time. Every sum has the terms and the order that `attend_queries` gives it, so the bits are the same.

constexpr int64_t MANY_QUERIES = 16;
constexpr int64_t SCORES_AT_ONCE = 1 << 19;  // floats that a thread keeps
constexpr int64_t BLOCK_FLOATS = 1 << 12;    // of turned keys or widened values

inline int64_t block_keys(int64_t width) {  // a multiple of LANES
    return std::max<int64_t>(LANES, std::min<int64_t>(64, BLOCK_FLOATS / width / LANES * LANES));
}

// Keys of `num_keys` positions -> turned [D, stride]; behind the last, that is repeated.
template <class E>
void turn_keys(const E* const* keys, int64_t num_keys, int64_t head_dim, int64_t stride, float* turned) {
    const int64_t whole = head_dim / LANES * LANES;
    Vector part[LANES];
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
    auto lane = [&](int64_t j, Vector* sums) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sums[q] = Vector{};
        for (int64_t d = j; d < whole; d += LANES) {
            Vector key = load(turned + d * stride);
#pragma GCC unroll 4
            for (int q = 0; q < NQ; ++q) sums[q] += query[q * head_dim + d] * key;
        }
    };
    auto four = [&](int64_t j, Vector* sums) __attribute__((always_inline)) {
        Vector even[NQ], odd[NQ], more[NQ];
        lane(j, even), lane(j + 2, more);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) even[q] += more[q];
        lane(j + 1, odd), lane(j + 3, more);
#pragma GCC unroll 4
        for (int q = 0; q < NQ; ++q) sums[q] = even[q] + (odd[q] + more[q]);
    };
    Vector sums[NQ], others[NQ], more[NQ];
    four(0, sums), four(8, more);
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) sums[q] += more[q];
    four(4, others), four(12, more);
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q) sums[q] += others[q] + more[q];
    for (int64_t d = whole; d < head_dim; ++d) {
        Vector key = load(turned + d * stride);
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
    Vector kept[NQ][NV];
#pragma GCC unroll 4
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) kept[q][v] = load(sums[q] + first + v * LANES);
    for (int64_t k = 0; k < num_keys; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            Vector one = load(values + k * width + first + v * LANES);
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
    constexpr int NV = std::min(4, std::max(1, MAX_SUMS / NQ));
    int64_t done = 0;
    for (; done + NV * LANES <= width; done += NV * LANES)
        mix_widened<NQ, NV>(weights, values, num_keys, width, done, sums);
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
    if (left >= MANY_QUERIES) {
        const int64_t at_once = std::max(MANY_QUERIES, SCORES_AT_ONCE / num_places / 4 * 4);
        for (; left > 0; left -= at_once, query += at_once)
            attend_block(call, query, std::min(left, at_once), places.data(), num_places, base, room);
        return;
    }
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

}  // namespace

extern "C" {

void hearth_attend_f32(const AttentionCall* call) { attend<float>(*call); }
void hearth_attend_bf16(const AttentionCall* call) { attend<bf16>(*call); }
}
