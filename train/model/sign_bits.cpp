#include "train/model/sign_bits.h"

#include <algorithm>

#include "kernels/device/philox.h"

namespace speedrun {

std::vector<int32_t> sign_bits(const SignSizes& sizes) {
    const auto [rows, columns] = sizes;
    constexpr uint64_t kSeed = 0x7369676e73;  // "signs"
    const int64_t words = (columns + 31) / 32;
    std::vector<int32_t> bits;
    bits.reserve(static_cast<size_t>(rows * words));
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t word = 0; word < words; word += 4) {
            const auto four = philox4x32({static_cast<uint32_t>(word / 4), static_cast<uint32_t>(row), 0, 0},
                                         philox_key(kSeed));
            for (int64_t i = word; i < std::min(word + 4, words); ++i) {
                const int64_t used = std::min<int64_t>(32, columns - 32 * i);
                const uint32_t mask = used == 32 ? ~uint32_t{0} : (uint32_t{1} << used) - 1;
                bits.push_back(static_cast<int32_t>(four[static_cast<size_t>(i - word)] & mask));
            }
        }
    }
    return bits;
}

}  // namespace speedrun
