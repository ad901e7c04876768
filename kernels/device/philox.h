// Philox-4x32-10: a counter-based random generator. The same (counter, key) always gives the same four words.
// So a random number is addressed by (seed, parameter, element) instead of drawn from a shared state. Source:
// Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11. Non-goal: secrecy.
#pragma once

#include <array>
#include <cstdint>

namespace speedrun {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Key of a 64-bit seed: lower word first.
constexpr PhiloxKey philox_key(uint64_t seed) {
    return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

// Four independent, uniformly distributed 32-bit words for this counter and key.
constexpr std::array<uint32_t, 4> philox4x32(PhiloxCounter counter, PhiloxKey key) {
    constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
    constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;  // golden ratio, sqrt(3) - 1
    constexpr int kRounds = 10;
    for (int round = 0; round < kRounds; ++round) {
        const uint64_t product0 = kMultiplier0 * counter[0];
        const uint64_t product1 = kMultiplier1 * counter[2];
        const PhiloxCounter previous = counter;
        counter[0] = static_cast<uint32_t>(product1 >> 32) ^ previous[1] ^ key[0];
        counter[1] = static_cast<uint32_t>(product1);
        counter[2] = static_cast<uint32_t>(product0 >> 32) ^ previous[3] ^ key[1];
        counter[3] = static_cast<uint32_t>(product0);
        key[0] += kWeyl0;
        key[1] += kWeyl1;
    }
    return counter;
}

}  // namespace speedrun
