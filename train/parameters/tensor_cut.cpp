#include "train/parameters/tensor_cut.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// The other parts' rows of a stack are before and after this part's rows in the whole parameter.
std::vector<Box> boxes_of_rows(const std::vector<int64_t>& shape, const TensorCut& cut,
                               const Range& elements) {
    const int64_t columns = shape.size() == 2 ? shape[1] : 1;
    std::vector<Box> boxes;
    int64_t first = 0;  // first element of the stack in this part
    for (const int64_t rows : cut.stacks.empty() ? std::vector{shape[0]} : cut.stacks) {
        const int64_t count = rows * columns;
        const Range own = common(elements, {first, count});
        if (own.count > 0)
            boxes.push_back(Box::of({first * cut.parts + cut.index * count + own.begin - first, own.count}));
        first += count;
    }
    return boxes;
}

// In the whole parameter, a row of this part has the other parts' columns before and after it.
std::vector<Box> boxes_of_columns(const std::vector<int64_t>& shape, const TensorCut& cut,
                                  const Range& elements) {
    const int64_t block = shape[1], stride = block * cut.parts;
    const auto whole = [&](int64_t at) { return at / block * stride + cut.index * block + at % block; };
    std::vector<Box> boxes;
    const auto add = [&](int64_t from, int64_t rows, int64_t columns) {
        if (rows > 0 && columns > 0) boxes.push_back({whole(from), rows, columns, stride});
    };
    const int64_t first = elements.begin, end = elements.end(),
                  first_whole = (first + block - 1) / block * block, last_whole = end / block * block;
    if (first_whole > last_whole) {  // within one row
        add(first, 1, elements.count);
        return boxes;
    }
    add(first, 1, first_whole - first);
    add(first_whole, (last_whole - first_whole) / block, block);
    add(last_whole, 1, end - last_whole);
    return boxes;
}

}  // namespace

std::vector<Box> boxes_of(const std::vector<int64_t>& shape, const TensorCut& cut, const Range& in_slice) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    auto [first, count] = in_slice;
    if (first < 0 || count < 0 || in_slice.end() > numel)
        throw_internal("elements {} to {} of a part of {}", first, in_slice.end(), numel);
    if (count > 0 && cut.all()) return {Box::of(in_slice)};
    if (cut.dimension == 0 && cut.whole > 0 && cut.stacks.empty()) {
        const int64_t rows = std::clamp<int64_t>(cut.whole - cut.index * shape[0], 0, shape[0]);
        count = std::min(count, rows * (numel / shape[0]) - first);
    }
    if (count <= 0) return {};
    return cut.dimension == 0 ? boxes_of_rows(shape, cut, {first, count})
                              : boxes_of_columns(shape, cut, {first, count});
}

}  // namespace speedrun
