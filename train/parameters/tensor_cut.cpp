#include "train/parameters/tensor_cut.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

// A part cut along dimension 0 has one block per stack; cut along dimension 1, one per row. In the whole parameter, the
// blocks of the other parts follow each block.
std::vector<Box> boxes_of(const std::vector<int64_t>& shape, const TensorCut& cut, const Range& in_slice) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    auto [first, count] = in_slice;
    if (first < 0 || count < 0 || in_slice.end() > numel)
        throw_internal("elements {} to {} of a part of {}", first, in_slice.end(), numel);
    if (count > 0 && cut.all()) return {Box::of(in_slice)};
    if (cut.dimension == 0 && cut.whole > 0 && cut.stacked == 1) {
        const int64_t rows = std::clamp<int64_t>(cut.whole - cut.index * shape[0], 0, shape[0]);
        count = std::min(count, rows * (numel / shape[0]) - first);
    }
    if (count <= 0) return {};
    const int64_t block = cut.dimension == 0 ? numel / cut.stacked : shape[1], stride = block * cut.parts;
    const auto whole = [&](int64_t at) { return at / block * stride + cut.index * block + at % block; };
    std::vector<Box> boxes;
    const auto add = [&](int64_t from, int64_t rows, int64_t columns) {
        if (rows > 0 && columns > 0) boxes.push_back({whole(from), rows, columns, stride});
    };
    const int64_t end = first + count, first_whole = (first + block - 1) / block * block,
                  last_whole = end / block * block;
    if (first_whole > last_whole) {  // within one block
        add(first, 1, count);
        return boxes;
    }
    add(first, 1, first_whole - first);
    add(first_whole, (last_whole - first_whole) / block, block);
    add(last_whole, 1, end - last_whole);
    return boxes;
}

}  // namespace speedrun
