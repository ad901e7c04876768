#include "train/model/sign_bits.h"

#include <array>
#include <cstddef>

#include "kernels/device/philox.h"

namespace speedrun {

std::vector<int32_t> sign_bits(const SignSizes& sizes) {
    const auto [rows, columns, first] = sizes;
    constexpr uint64_t kSeed = 0x7369676e73;  // "signs"
    const int64_t words = (columns + 31) / 32;
    std::vector<int32_t> bits(static_cast<size_t>(rows * words));
    for (int64_t row = 0; row < rows; ++row) {
        // One random block holds the bits of 128 columns.
        std::array<uint32_t, 4> block{};
        int64_t drawn = -1;
        for (int64_t i = 0; i < columns; ++i) {
            const int64_t column = first + i;
            if (column / 128 != drawn) {
                drawn = column / 128;
                block = philox4x32({static_cast<uint32_t>(drawn), static_cast<uint32_t>(row), 0, 0},
                                   philox_key(kSeed));
            }
            const uint32_t bit = block[static_cast<size_t>(column % 128 / 32)] >> (column % 32) & 1;
            int32_t& word = bits[static_cast<size_t>(row * words + i / 32)];
            word = static_cast<int32_t>(static_cast<uint32_t>(word) | bit << (i % 32));
        }
    }
    return bits;
}

}  // namespace speedrun
