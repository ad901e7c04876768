#include "train/checkpoint/tensor_box.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <string_view>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

int64_t numel_of(const std::vector<int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::optional<int64_t> parse_number(std::string_view text) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
    return number;
}

std::optional<Range> parse_range(std::string_view text) {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const auto begin = parse_number(text.substr(0, colon)), end = parse_number(text.substr(colon + 1));
    if (!begin || !end || *end < *begin) return std::nullopt;
    return Range{*begin, *end - *begin};
}

// Returns the first row that ends after element `at` of the tensor.
int64_t row_after(const Box& box, int64_t at) {
    const int64_t end = box.begin + box.columns;  // end of the first row
    return at < end ? 0 : (at - end) / box.stride + 1;
}

}  // namespace

std::string piece_name(const std::string& tensor, const std::vector<int64_t>& shape, const Box& box) {
    if (box.count() == numel_of(shape)) return tensor;
    if (box.rows == 1) return fmt::format("{}[{}:{}]", tensor, box.begin, box.end());
    const bool of_matrix =
        shape.size() == 2 && box.stride == shape[1] && box.begin % box.stride + box.columns <= box.stride;
    if (!of_matrix)
        throw_internal("{}: {} rows of {} elements, stride {}, are no submatrix of a tensor [{}]", tensor,
                       box.rows, box.columns, box.stride, fmt::join(shape, ","));
    const int64_t row = box.begin / box.stride, column = box.begin % box.stride;
    return fmt::format("{}[{}:{},{}:{}]", tensor, row, row + box.rows, column, column + box.columns);
}

std::vector<int64_t> piece_shape(const std::vector<int64_t>& shape, const Box& box) {
    if (box.count() == numel_of(shape)) return shape;
    return box.rows == 1 ? std::vector{box.columns} : std::vector{box.rows, box.columns};
}

PieceName parse_piece_name(const std::string& name) {
    const size_t bracket = name.rfind('[');
    if (!name.ends_with(']') || bracket == std::string::npos) return {name, {}};
    PieceName piece{name.substr(0, bracket), {}};
    std::string_view rest = std::string_view(name).substr(bracket + 1);
    rest.remove_suffix(1);
    const size_t comma = rest.find(',');
    std::vector<std::string_view> texts{rest.substr(0, comma)};
    if (comma != std::string_view::npos) texts.push_back(rest.substr(comma + 1));
    for (const std::string_view text : texts) {
        const std::optional<Range> range = parse_range(text);
        if (!range) return {name, {}};
        piece.ranges.push_back(*range);
    }
    return piece;
}

std::optional<Box> box_of(const PieceName& name, const std::vector<int64_t>& shape) {
    if (name.ranges.empty()) return Box::of({0, numel_of(shape)});
    const Range& first = name.ranges.front();
    if (name.ranges.size() == 1) {
        if (first.end() > numel_of(shape)) return std::nullopt;
        return Box::of(first);
    }
    const Range& columns = name.ranges.back();
    if (shape.size() != 2 || first.end() > shape[0] || columns.end() > shape[1]) return std::nullopt;
    return Box{.begin = first.begin * shape[1] + columns.begin,
               .rows = first.count,
               .columns = columns.count,
               .stride = shape[1]};
}

std::vector<Overlap> overlaps_of(const Box& first, const Box& second) {
    std::vector<Overlap> overlaps;
    if (first.count() == 0 || second.count() == 0) return overlaps;
    const auto add = [&](const Overlap& next) {
        if (!overlaps.empty()) {
            Overlap& last = overlaps.back();
            if (last.in_first + last.count == next.in_first &&
                last.in_second + last.count == next.in_second) {
                last.count += next.count;
                return;
            }
        }
        overlaps.push_back(next);
    };
    for (int64_t i = row_after(first, second.begin); i < first.rows; ++i) {
        const Range row = first.row(i);
        if (row.begin >= second.end()) break;
        for (int64_t j = row_after(second, row.begin); j < second.rows; ++j) {
            const Range other = second.row(j), both = common(row, other);
            if (other.begin >= row.end()) break;
            add({i * first.columns + both.begin - row.begin, j * second.columns + both.begin - other.begin,
                 both.count});
        }
    }
    return overlaps;
}

Coverage coverage_of(const std::vector<Box>& boxes) {
    std::vector<Range> rows = contiguous_ranges(boxes);
    std::erase_if(rows, [](const Range& row) { return row.count == 0; });
    std::sort(rows.begin(), rows.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    Coverage coverage;
    for (const Range& row : rows) {
        if (row.begin > coverage.reached) break;
        if (row.begin < coverage.reached) return {row.begin, true};
        coverage.reached = row.end();
    }
    return coverage;
}

}  // namespace speedrun
