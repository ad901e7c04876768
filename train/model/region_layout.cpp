#include "train/model/region_layout.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int64_t kAlignedElements = 16;  // elements: 64 bytes of f32

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace

std::string Region::name() const {
    const std::string& first = pieces.front().parameter->name;
    const Piece& piece = pieces.front();
    if (pieces.size() == 1 && piece.count < piece.parameter->numel())
        return fmt::format("{}[{}]", first, piece.in_parameter / piece.count);
    if (pieces.size() == 1) return first;
    return rows > 0 ? fmt::format("{} matrices from {}", count / (rows * cols), first)
                    : fmt::format("{} small parameters from {}", pieces.size(), first);
}

RegionLayout::RegionLayout(const ParameterTable& table, const RegionRules& rules)
    : table_(table), rules_(rules), offset_of_(table.all().size()), regions_of_(table.all().size()) {
    // Banks by group, type and shape; small parameters by unit, group and type; in order of declaration.
    std::map<std::tuple<int, bool, int64_t, int64_t>, std::vector<const Parameter*>> banks;
    std::map<std::tuple<int, int, bool>, std::vector<const Parameter*>> small;
    for (const Parameter& p : table.all()) {
        const int group = group_of(p);
        const bool matrices = whole_matrix(group);
        const int parts = matrices && !rules_.cut_matrices ? matrix_parts() : rules_.parts;
        if (parts > 1 && matrices && rules_.cut_matrices) {
            add_by_matrix(p);
        } else if (parts > 1 && matrices) {
            banks[{group, p.full_precision, p.shape[0] / p.matrices, p.shape[1]}].push_back(&p);
        } else if (parts > 1 && p.numel() < rules_.coalesce_below) {
            small[{p.unit, group, p.full_precision}].push_back(&p);
        } else {
            add_alone(p);
        }
    }
    for (const auto& [key, members] : small) add_small(members);
    for (const auto& [key, members] : banks) add_bank(members);
    for (const Region& region : regions_)
        for (const Piece& piece : region.pieces) regions_of_[piece.parameter->id].push_back(region.id);
}

bool RegionLayout::sharded() const {
    return std::any_of(regions_.begin(), regions_.end(), [](const Region& r) { return r.parts > 1; });
}

int RegionLayout::matrix_parts() const {
    return rules_.matrix_parts > 0 ? rules_.matrix_parts : rules_.parts;
}

int RegionLayout::group_of(const Parameter& p) const {
    return rules_.group_of.empty() ? 0 : rules_.group_of[p.id];
}

bool RegionLayout::whole_matrix(int group) const {
    return !rules_.whole_matrix.empty() && rules_.whole_matrix[group];
}

Region& RegionLayout::add(const Parameter& first, bool aligned) {
    if (aligned) elements_ = ceil_div(elements_, kAlignedElements) * kAlignedElements;
    Region region;
    region.id = size();
    region.group = group_of(first);
    region.full_precision = first.full_precision;
    region.offset = elements_;
    region.parts = rules_.parts;
    region.index = rules_.index;
    region.begins_cluster = aligned;
    regions_.push_back(region);
    return regions_.back();
}

void RegionLayout::add_alone(const Parameter& p) {
    Region& region = add(p, true);
    const int64_t rows = p.shape[0], cols = p.numel() / rows;
    region.count = p.numel();
    region.part = ceil_div(rows, region.parts) * cols;
    region.pieces = {{&p, 0, 0, p.numel()}};
    if (p.is_matrix()) {
        region.rows = rows / p.matrices;
        region.cols = cols;
    }
    offset_of_[p.id] = region.offset;
    elements_ += padded(region);
}

void RegionLayout::add_small(const std::vector<const Parameter*>& members) {
    Region& region = add(*members.front(), true);
    for (const Parameter* p : members) {
        region.count = ceil_div(region.count, kAlignedElements) * kAlignedElements;
        offset_of_[p->id] = region.offset + region.count;
        region.pieces.push_back({p, 0, region.count, p->numel()});
        region.count += p->numel();
    }
    region.part = ceil_div(region.count, region.parts);
    elements_ += padded(region);
}

void RegionLayout::add_bank(const std::vector<const Parameter*>& members) {
    const int64_t rows = members.front()->shape[0] / members.front()->matrices,
                  cols = members.front()->shape[1];
    const int64_t matrix = rows * cols;
    const int parts = matrix_parts();
    Region* region = nullptr;
    int64_t filled = parts;  // matrices in the current region: full, so the first one opens another
    for (const Parameter* p : members) {
        for (int64_t m = 0; m < p->matrices; ++m) {
            if (filled == parts) {
                region = &add(*p, m == 0);
                region->parts = parts;
                if (rules_.matrix_parts > 0) region->index = rules_.matrix_index;
                region->rows = rows;
                region->cols = cols;
                region->part = matrix;
                elements_ += padded(*region);
                filled = 0;
            }
            const int64_t at = filled * matrix;
            if (m == 0) offset_of_[p->id] = region->offset + at;
            if (!region->pieces.empty() && region->pieces.back().parameter == p) {
                region->pieces.back().count += matrix;
            } else {
                region->pieces.push_back({p, m * matrix, at, matrix});
            }
            region->count = at + matrix;
            ++filled;
        }
    }
}

// Rows are contiguous, so the matrices of a stack can be regions of their own if their rows come out even.
void RegionLayout::add_by_matrix(const Parameter& p) {
    const int64_t rows = p.shape[0] / p.matrices, cols = p.shape[1];
    if (p.matrices == 1 || rows % rules_.parts != 0) return add_alone(p);
    for (int64_t m = 0; m < p.matrices; ++m) {
        Region& region = add(p, m == 0);
        region.rows = rows;
        region.cols = cols;
        region.count = rows * cols;
        region.part = region.count / region.parts;
        region.pieces = {{&p, m * rows * cols, 0, region.count}};
        if (m == 0) offset_of_[p.id] = region.offset;
        elements_ += region.count;
    }
}

int64_t RegionLayout::valid(const Region& region) const {
    return std::clamp<int64_t>(region.count - region.index * region.part, 0, region.part);
}

std::vector<Piece> RegionLayout::part_pieces(const Region& region) const {
    const int64_t begin = region.index * region.part, end = begin + region.part;
    std::vector<Piece> result;
    for (const Piece& piece : region.pieces) {
        const int64_t first = std::max(piece.in_region, begin),
                      last = std::min(piece.in_region + piece.count, end);
        if (first < last)
            result.push_back(
                {piece.parameter, piece.in_parameter + first - piece.in_region, first - begin, last - first});
    }
    return result;
}

std::pair<int64_t, int64_t> RegionLayout::rows_in_part(const Region& region, int64_t first, int index) const {
    const int64_t begin = std::max(first, index * region.part),
                  end = std::min(first + region.rows * region.cols, (index + 1) * region.part);
    return {begin, std::max<int64_t>(0, end - begin)};
}

std::vector<MatrixFamily> RegionLayout::matrix_families() const {
    std::map<std::tuple<int, int64_t, int64_t>, MatrixFamily> families;
    for (const Region& region : regions_) {
        if (!rules_.cut_matrices || !whole_matrix(region.group)) continue;
        MatrixFamily& family = families[{region.group, region.rows, region.cols}];
        family.group = region.group;
        family.rows = region.rows;
        family.cols = region.cols;
        for (int64_t first = 0; first < region.count; first += region.rows * region.cols) {
            ++family.count;
            for (int index = 0; index < region.parts; ++index)
                family.block = std::max(family.block, rows_in_part(region, first, index).second);
        }
    }
    std::vector<MatrixFamily> all;
    for (const auto& [key, family] : families) all.push_back(family);
    return all;
}

std::vector<int> RegionLayout::backward_order() const {
    std::vector<int> order;
    for (const Region& region : regions_) order.push_back(region.id);
    std::sort(order.begin(), order.end(), [this](int a, int b) {
        const auto key = [this](int id) { return std::pair((*this)[id].first_parameter(), id); };
        return key(a) > key(b);
    });
    return order;
}

}  // namespace speedrun
