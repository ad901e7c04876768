#include "train/model/model_extents.h"

#include "kernels/device/error.h"

namespace speedrun {

Extent ModelExtents::cut(Extent whole) const {
    const int parts = batch_.tensor.size;
    if (parts == 1) return whole;
    const bool padded = whole.dimension == Dimension::vocabulary;
    if (!padded && whole.size % (parts * whole.stacked) != 0)
        throw_internal("extent {} of {} x {} has no {} equal parts", name_of(whole.dimension), whole.stacked,
                       whole.size / whole.stacked, parts);
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
