// Every range of every tensor slice of a parameter, checked element by element.
#include "train/parameters/tensor_cut.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device/error.h"
#include "train/parameters/parameter_table.h"

namespace speedrun::testing::tensor_cut_test {

struct Case {
    std::vector<int64_t> whole;  // shape
    int dimension;
    int parts;
    int64_t stacked;
};

// Small versions of the models' cuts: rows, columns and stacked rows, for matrices and vectors.
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const int parts : {2, 3}) {
        for (const int64_t stacked : {1, 3}) {
            all.push_back({{parts * stacked}, 0, parts, stacked});
            all.push_back({{parts * stacked * 2}, 0, parts, stacked});
            all.push_back({{parts * stacked, 4}, 0, parts, stacked});
            all.push_back({{parts * stacked * 2, 3}, 0, parts, stacked});
        }
        all.push_back({{1, parts * int64_t{3}}, 1, parts, 1});
        all.push_back({{4, parts}, 1, parts, 1});
        all.push_back({{5, parts * int64_t{2}}, 1, parts, 1});
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
    const int64_t size = c.whole[static_cast<size_t>(c.dimension)] / c.stacked, part = size / c.parts;
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < numel(c.whole); ++i) {
        const int64_t at = c.dimension == 0 ? i / cols : i % cols;
        if (at % size / part == index) elements.push_back(i);
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

TEST(TensorCutTest, EveryRangeLiesWhereItsElementsDo) {
    for (const Case& c : cases()) {
        std::vector<int64_t> shape = c.whole;
        shape[static_cast<size_t>(c.dimension)] /= c.parts;
        for (int index = 0; index < c.parts; ++index) {
            const std::vector<int64_t> elements = elements_of_part(c, index);
            const auto count = static_cast<int64_t>(elements.size());
            ASSERT_EQ(count, numel(shape));
            const TensorCut cut{
                .dimension = c.dimension, .parts = c.parts, .index = index, .stacked = c.stacked};
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

TEST(TensorCutTest, PartsTogetherAreTheWholeOnce) {
    for (const Case& c : cases()) {
        std::vector<int64_t> shape = c.whole;
        shape[static_cast<size_t>(c.dimension)] /= c.parts;
        for (const int shards : {1, 2, 3, 5}) {
            std::vector<int> seen(static_cast<size_t>(numel(c.whole)));
            const int64_t shard = (numel(shape) + shards - 1) / shards;
            for (int64_t first = 0; first < numel(shape); first += shard) {
                const int64_t count = std::min(shard, numel(shape) - first);
                for (int index = 0; index < c.parts; ++index)
                    for (const int64_t element : elements_of(
                             boxes_of(shape, {c.dimension, c.parts, index, c.stacked}, {first, count})))
                        ++seen[static_cast<size_t>(element)];
            }
            EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
        }
    }
}

TEST(TensorCutTest, WhatIsNotCutIsOneRow) {
    const std::vector<Box> boxes = boxes_of({3, 4}, TensorCut(), {5, 6});
    ASSERT_EQ(boxes.size(), 1u);
    EXPECT_EQ(boxes[0], Box::of({5, 6}));
    EXPECT_TRUE(boxes_of({3, 4}, TensorCut(), {5, 0}).empty());
}

TEST(TensorCutTest, ElementsThatAPartLacksAreRefused) {
    const TensorCut cut{.dimension = 1, .parts = 2, .index = 1};
    EXPECT_THROW(boxes_of({3, 4}, cut, {5, 8}), Error);
    EXPECT_THROW(boxes_of({3, 4}, cut, {-1, 2}), Error);
    EXPECT_THROW(boxes_of({3, 4}, TensorCut(), {12, 1}), Error);
}

// 7 rows in 3 slices of 3: the last slice has one row and two padding rows, which map to nothing.
TEST(TensorCutTest, PaddingLiesNowhere) {
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
        InitRule(), 1);
    EXPECT_EQ(table[id].whole_shape(), (std::vector<int64_t>{7, 4}));
    EXPECT_EQ(table.whole_numel(), 28);
}

TEST(TensorCutTest, ParametersKnowTheirWhole) {
    ParameterTable table(1);
    const int id = table.declare("a", {{Dimension::width, 4}, {Dimension::hidden, 6, 3}}, InitRule(), 1);
    EXPECT_EQ(table[id].shape, (std::vector<int64_t>{4, 6}));
    EXPECT_EQ(table[id].whole_shape(), (std::vector<int64_t>{4, 18}));
    EXPECT_EQ(table.numel(), 24);
    EXPECT_EQ(table.whole_numel(), 72);
    EXPECT_EQ(table[id].boxes({7, 2}).front().begin, 18 + 6 + 1);
    EXPECT_THROW(table.declare("b", {{Dimension::heads, 4, 2}, {Dimension::hidden, 6, 2}}, InitRule(), 1),
                 Error);
}

}  // namespace speedrun::testing::tensor_cut_test
