#include "train/model/model_extents.h"

#include <numeric>

#include "kernels/device/error.h"

namespace speedrun {

Extent ModelExtents::head_width(std::initializer_list<int64_t> stacks, bool whole) const {
    Extent extent{.dimension = whole ? Dimension::all_width : Dimension::head_width,
                  .size = std::accumulate(stacks.begin(), stacks.end(), int64_t{0})};
    if (stacks.size() > 1) extent.stacks = stacks;
    return whole ? extent : cut(extent);
}

Extent ModelExtents::cut(Extent whole) const {
    const int parts = batch_.tensor.size;
    if (parts == 1) return whole;
    const auto expect_parts = [&](int64_t size) {
        if (size % parts != 0)
            throw_internal("extent {} of {} has no {} equal parts", name_of(whole.dimension), size, parts);
    };
    if (whole.stacks.empty() && whole.dimension != Dimension::vocabulary) expect_parts(whole.size);
    for (int64_t& size : whole.stacks) {
        expect_parts(size);
        size /= parts;
    }
    whole.whole = whole.size;
    whole.size = (whole.size + parts - 1) / parts;
    whole.parts = parts;
    return whole;
}

std::optional<ChunkBorders::Options> ModelExtents::chunk_borders(const Extent& columns) const {
    if (batch_.part.size == 1) return std::nullopt;
    return ChunkBorders::Options{.part = batch_.part,
                                 .rows = batch_.tokens / batch_.sequence_length,
                                 .sequence_length = batch_.sequence_length,
                                 .columns = columns.size};
}

}  // namespace speedrun
