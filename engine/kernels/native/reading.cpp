// Weights from a file into place, checked while they are still in the cache of the core that read them.
//
// One call for a whole piece: a thread that reads does not come back to the interpreter, and to its lock, between a
// block and its check. Its twin in Python is `Files.read_finite`.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <unistd.h>

namespace {

constexpr int64_t BLOCK_BYTES = 256 << 10;  // a part of a core's second-level cache
constexpr int64_t AHEAD_BYTES = 4096;        // fetched before they are looked at
constexpr int64_t NOT_FINITE = INT64_MIN;

// Read as integers less their sign, floats that are not finite are those from `bad` on, for every format.
template <class Word>
bool is_finite(const char* bytes, int64_t num_bytes, uint64_t bad) {
    constexpr int WIDE = 256 / sizeof(Word);
    const Word* x = reinterpret_cast<const Word*>(bytes);
    const Word magnitude = Word(~Word(0)) >> 1;
    const int64_t n = num_bytes / int64_t(sizeof(Word));
    Word largest[WIDE] = {};
    int64_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        for (int line = 0; line < 256; line += 64) __builtin_prefetch(bytes + i * sizeof(Word) + AHEAD_BYTES + line);
        for (int j = 0; j < WIDE; ++j) largest[j] = std::max(largest[j], Word(x[i + j] & magnitude));
    }
    for (; i < n; ++i) largest[0] = std::max(largest[0], Word(x[i] & magnitude));
    return *std::max_element(largest, largest + WIDE) < Word(bad);
}

bool is_finite(const char* bytes, int64_t num_bytes, int64_t item_bytes, uint64_t bad) {
    switch (item_bytes) {
        case 1: return is_finite<uint8_t>(bytes, num_bytes, bad);
        case 2: return is_finite<uint16_t>(bytes, num_bytes, bad);
        case 4: return is_finite<uint32_t>(bytes, num_bytes, bad);
        default: return is_finite<uint64_t>(bytes, num_bytes, bad);
    }
}

}  // namespace

// Reads `num_bytes` at `offset` of a file into memory that is aligned for its numbers. How many were read: fewer where
// the file ends; less than 0 for a system's error; NOT_FINITE if a number is NaN or infinite.
extern "C" int64_t hearth_read_finite(
    int file, char* to, int64_t num_bytes, int64_t offset, int64_t item_bytes, uint64_t bad) {
    for (int64_t first = 0; first < num_bytes;) {
        const int64_t last = std::min(first + BLOCK_BYTES, num_bytes);
        for (int64_t done = first; done < last;) {
            const ssize_t count = pread(file, to + done, size_t(last - done), offset + done);
            if (count < 0 && errno == EINTR) continue;
            if (count < 0) return -int64_t(errno);
            if (count == 0) return done;
            done += count;
        }
        if (!is_finite(to + first, last - first, item_bytes, bad)) return NOT_FINITE;
        first = last;
    }
    return num_bytes;
}
