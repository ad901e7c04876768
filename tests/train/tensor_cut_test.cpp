// Every range of every tensor slice of a parameter, checked element by element.
#include "train/parameters/tensor_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/device/error.h"
#include "train/parameters/parameter_table.h"

namespace speedrun::testing::tensor_cut_test {

struct Case {
    std::vector<int64_t> whole;  // shape
    int dimension;
    int parts;
    std::vector<int64_t> stacks;  // rows of whole stacks; empty: one

    TensorCut cut(int index) const {
        TensorCut cut{.dimension = dimension, .parts = parts, .index = index};
        for (const int64_t rows : stacks) cut.stacks.push_back(rows / parts);
        return cut;
    }
};

// Small versions of the models' cuts: rows, columns and stacked rows, for matrices and vectors.
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const int parts : {2, 3}) {
        for (const std::vector<int64_t>& stacks :
             {std::vector<int64_t>{1}, {2}, {1, 1, 1}, {2, 2, 2}, {1, 1, 2}, {2, 2, 1}, {3, 1}}) {
            std::vector<int64_t> whole;
            for (const int64_t rows : stacks) whole.push_back(rows * parts);
            const int64_t rows = std::accumulate(whole.begin(), whole.end(), int64_t{0});
            if (whole.size() == 1) whole.clear();
            all.push_back({{rows}, 0, parts, whole});
            all.push_back({{rows, 4}, 0, parts, whole});
        }
        all.push_back({{1, parts * int64_t{3}}, 1, parts, {}});
        all.push_back({{4, parts}, 1, parts, {}});
        all.push_back({{5, parts * int64_t{2}}, 1, parts, {}});
    }
    return all;
}

int64_t numel(const std::vector<int64_t>& shape) {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
}

// Indices in the whole parameter of this slice's elements, in order.
std::vector<int64_t> elements_of_part(const Case& c, int index) {
    const int64_t cols = c.whole.size() == 2 ? c.whole[1] : 1;
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < numel(c.whole); ++i) {
        int64_t at = c.dimension == 0 ? i / cols : i % cols;
        int64_t size = c.whole[static_cast<size_t>(c.dimension)];
        for (const int64_t rows : c.stacks) {
            size = rows;
            if (at < rows) break;
            at -= rows;
        }
        if (at / (size / c.parts) == index) elements.push_back(i);
    }
    return elements;
}

std::vector<int64_t> elements_of(const std::vector<Box>& boxes) {
    std::vector<int64_t> elements;
    for (const Box& box : boxes)
        for (int64_t i = 0; i < box.count(); ++i)
            elements.push_back(box.begin + i / box.columns * box.stride + i % box.columns);
    return elements;
}

TEST(TensorCutTest, RangesMapToTheirElements) {
    for (const Case& c : cases()) {
        std::vector<int64_t> shape = c.whole;
        shape[static_cast<size_t>(c.dimension)] /= c.parts;
        for (int index = 0; index < c.parts; ++index) {
            const std::vector<int64_t> elements = elements_of_part(c, index);
            const auto count = static_cast<int64_t>(elements.size());
            ASSERT_EQ(count, numel(shape));
            const TensorCut cut = c.cut(index);
            for (int64_t first = 0; first <= count; ++first) {
                for (int64_t end = first; end <= count; ++end) {
                    const std::vector<Box> boxes = boxes_of(shape, cut, {first, end - first});
                    EXPECT_LE(boxes.size(), 3u);
                    const std::vector<int64_t> actual = elements_of(boxes);
                    const std::vector<int64_t> expected(elements.begin() + first, elements.begin() + end);
                    ASSERT_EQ(actual, expected) << "elements " << first << " to " << end << " of part "
                                                << index << " of " << c.parts << " along " << c.dimension;
                }
            }
        }
    }
}

TEST(TensorCutTest, SlicesCoverWholeOnce) {
    for (const Case& c : cases()) {
        std::vector<int64_t> shape = c.whole;
        shape[static_cast<size_t>(c.dimension)] /= c.parts;
        for (const int shards : {1, 2, 3, 5}) {
            std::vector<int> seen(static_cast<size_t>(numel(c.whole)));
            const int64_t shard = (numel(shape) + shards - 1) / shards;
            for (int64_t first = 0; first < numel(shape); first += shard) {
                const int64_t count = std::min(shard, numel(shape) - first);
                for (int index = 0; index < c.parts; ++index)
                    for (const int64_t element : elements_of(boxes_of(shape, c.cut(index), {first, count})))
                        ++seen[static_cast<size_t>(element)];
            }
            EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
        }
    }
}

TEST(TensorCutTest, UncutRangeIsOneBox) {
    const std::vector<Box> boxes = boxes_of({3, 4}, TensorCut(), {5, 6});
    ASSERT_EQ(boxes.size(), 1u);
    EXPECT_EQ(boxes[0], Box::of({5, 6}));
    EXPECT_TRUE(boxes_of({3, 4}, TensorCut(), {5, 0}).empty());
}

TEST(TensorCutTest, RejectsElementsOutsideSlice) {
    const TensorCut cut{.dimension = 1, .parts = 2, .index = 1};
    EXPECT_THROW(boxes_of({3, 4}, cut, {5, 8}), Error);
    EXPECT_THROW(boxes_of({3, 4}, cut, {-1, 2}), Error);
    EXPECT_THROW(boxes_of({3, 4}, TensorCut(), {12, 1}), Error);
}

// 7 rows in 3 slices of 3: the last slice has one row and two padding rows, which map to nothing.
TEST(TensorCutTest, PaddingMapsToNothing) {
    const auto cut = [](int index) { return TensorCut{.parts = 3, .index = index, .whole = 7}; };
    const std::vector<Box> second = boxes_of({3, 4}, cut(1), {0, 12});
    ASSERT_EQ(second.size(), 1u);
    EXPECT_EQ(second[0].begin, 12);
    EXPECT_EQ(second[0].count(), 12);
    const std::vector<Box> last = boxes_of({3, 4}, cut(2), {1, 11});
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].begin, 25);
    EXPECT_EQ(last[0].count(), 3);
    EXPECT_TRUE(boxes_of({3, 4}, cut(2), {4, 8}).empty());
    ParameterTable table(2);
    const int id = table.declare(
        "a", {{.dimension = Dimension::vocabulary, .size = 3, .parts = 3, .whole = 7}, {Dimension::width, 4}},
        InitRule());
    EXPECT_EQ(table[id].whole_shape(), (std::vector<int64_t>{7, 4}));
    EXPECT_EQ(table.whole_numel(), 28);
}

TEST(TensorCutTest, ParametersStoreWholeShape) {
    ParameterTable table(1);
    const int id = table.declare("a", {{Dimension::width, 4}, {Dimension::hidden, 6, 3}}, InitRule());
    EXPECT_EQ(table[id].shape, (std::vector<int64_t>{4, 6}));
    EXPECT_EQ(table[id].whole_shape(), (std::vector<int64_t>{4, 18}));
    EXPECT_EQ(table.numel(), 24);
    EXPECT_EQ(table.whole_numel(), 72);
    EXPECT_EQ(table[id].boxes({7, 2}).front().begin, 18 + 6 + 1);
    EXPECT_THROW(table.declare("b", {{Dimension::heads, 4, 2}, {Dimension::hidden, 6, 2}}, InitRule()),
                 Error);
}

}  // namespace speedrun::testing::tensor_cut_test
