// Tokens drawn from what a mask allows, where that is few: the second draws of rows that a constraint refused.
//
// Compiled together with kernels.cpp, under its rules: optional, over raw memory, every row's result its own. Its twin in
// Python is `_draw_allowed` of engine/sampling/constraints.py.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace {

constexpr int MOST_CHOSEN = 8192;  // as `_MAX_ALLOWED` in engine/sampling/constraints.py

uint64_t mix(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBULL;
    return state ^ (state >> 31);
}

// `uniform` of engine/sampling/random_numbers.py
double uniform(uint64_t seed, int64_t position) {
    constexpr uint64_t STEP = 0x9E3779B97F4A7C15ULL;
    return double(mix(mix(seed + STEP) + (uint64_t(position) + 1) * STEP) >> 11) * 0x1p-53;
}

// Which tokens are allowed; how many, more than MOST_CHOSEN if there are more than are found.
int find_allowed(const uint8_t* bits, int64_t vocab_size, int32_t* found) {
    int count = 0;
    for (int64_t first = 0; first < vocab_size; first += 8) {
        for (unsigned left = bits[first / 8]; left; left &= left - 1) {
            const int64_t token_id = first + __builtin_ctz(left);
            if (token_id >= vocab_size) return count;
            if (count == MOST_CHOSEN) return MOST_CHOSEN + 1;
            found[count++] = int32_t(token_id);
        }
    }
    return count;
}

}  // namespace

// For `num_rows` of logits [·, vocab_size], rows `stride` apart, with masks [num_rows, num_bytes], the lowest bit first:
// the tokens drawn by the random numbers of `seeds`, each turned by `turn`, and `positions`, or the likeliest where
// `temperature` is less than `least`; -1 where nothing is allowed, or more than MOST_CHOSEN. These columns are of all
// rows, `token_ids` of those drawn.
extern "C" void hearth_draw_allowed(
    const float* logits, const uint8_t* bits, const int64_t* rows, const float* temperature, const uint64_t* seeds,
    const int64_t* positions, int32_t* token_ids, int64_t num_rows, int64_t num_bytes, int64_t vocab_size,
    int64_t stride, uint64_t turn, float least) {
    static thread_local int32_t allowed[MOST_CHOSEN];
    static thread_local float weights[MOST_CHOSEN];
    static thread_local double until[MOST_CHOSEN];
    for (int64_t place = 0; place < num_rows; ++place) {
        const int64_t row = rows[place];
        const float* x = logits + row * stride;
        const int count = find_allowed(bits + place * num_bytes, vocab_size, allowed);
        token_ids[place] = -1;
        if (count == 0 || count > MOST_CHOSEN) continue;
        int best = 0;
        for (int i = 1; i < count; ++i)
            if (x[allowed[i]] > x[allowed[best]]) best = i;
        const float highest = x[allowed[best]];
        if (temperature[row] >= least && std::isfinite(highest)) {
            for (int i = 0; i < count; ++i)
                weights[i] = exponential<float, int32_t>((x[allowed[i]] - highest) / temperature[row]);
            double sum = 0;
            for (int i = 0; i < count; ++i) until[i] = sum += weights[i];
            const double target = uniform(seeds[row] ^ turn, positions[row]) * sum;
            best = std::min(int(std::upper_bound(until, until + count, target) - until), count - 1);
        }
        token_ids[place] = allowed[best];
    }
}
