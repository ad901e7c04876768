// Tokens of the pieces of a text that occur often.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace speedrun {

// A hash table in which two pieces share a bucket of one cache line; a new piece replaces the one used less recently.
class PieceCache {
  public:
    static constexpr size_t kMostBytes = 15, kMostTokens = 7;

    struct Entry {
        uint64_t low = 0, high = 0;  // the piece's bytes, then zeros; last byte: its length, 0 for no piece
        std::array<uint16_t, kMostTokens> tokens{};
        uint16_t count = 0;
    };
    struct Key {
        uint64_t low, high;
    };

    PieceCache() : buckets_(kBuckets) {}

    // piece: 1 to kMostBytes bytes. readable: bytes that may be read from its begin.
    static Key key_of(std::string_view piece, size_t readable) {
        std::array<uint64_t, 2> words{};
        if (readable >= sizeof(words)) {
            std::memcpy(words.data(), piece.data(), sizeof(words));
            const size_t in_low = std::min(piece.size(), size_t{8}), in_high = piece.size() - in_low;
            words[0] &= ~uint64_t{0} >> (64 - 8 * in_low);
            words[1] &= (uint64_t{1} << 8 * in_high) - 1;
        } else {
            std::memcpy(words.data(), piece.data(), piece.size());
        }
        return {words[0], words[1] | uint64_t{piece.size()} << 56};
    }
    // Returns the entry of a piece; null if it has none.
    const Entry* find(const Key& key) {
        Bucket& bucket = buckets_[index_of(key)];
        if (is_of(bucket[0], key)) return &bucket[0];
        if (!is_of(bucket[1], key)) return nullptr;
        std::swap(bucket[0], bucket[1]);
        return &bucket[0];
    }
    // Stores a piece of at most kMostTokens tokens.
    void store(const Key& key, std::span<const uint16_t> tokens) {
        Bucket& bucket = buckets_[index_of(key)];
        bucket[1] = bucket[0];
        bucket[0] = {key.low, key.high, {}, static_cast<uint16_t>(tokens.size())};
        std::copy(tokens.begin(), tokens.end(), bucket[0].tokens.begin());
    }

  private:
    static constexpr size_t kBuckets = size_t{1} << 16;  // 4 MiB
    struct alignas(64) Bucket : std::array<Entry, 2> {};

    static bool is_of(const Entry& entry, const Key& key) {
        return entry.low == key.low && entry.high == key.high;
    }
    static size_t index_of(const Key& key) {
        const uint64_t mixed = (key.low ^ (key.high * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
        return (mixed ^ mixed >> 32) % kBuckets;
    }

    std::vector<Bucket> buckets_;
};

}  // namespace speedrun
