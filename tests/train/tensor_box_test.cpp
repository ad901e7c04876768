// Names of checkpoint pieces, and box arithmetic against brute force.
#include "train/checkpoint/tensor_box.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/device/error.h"

namespace speedrun::testing::tensor_box_test {

using Shape = std::vector<int64_t>;

constexpr int64_t kRows = 4, kColumns = 5, kNumel = kRows * kColumns;

Box box(int64_t first_row, int64_t rows, int64_t first_column, int64_t columns) {
    return {
        .begin = first_row * kColumns + first_column, .rows = rows, .columns = columns, .stride = kColumns};
}

// All boxes and all runs of a matrix.
std::vector<Box> all_boxes() {
    std::vector<Box> boxes;
    for (int64_t begin = 0; begin < kNumel; ++begin)
        for (int64_t count = 0; begin + count <= kNumel; ++count) boxes.push_back(Box::of({begin, count}));
    for (int64_t row = 0; row < kRows; ++row)
        for (int64_t rows = 1; row + rows <= kRows; ++rows)
            for (int64_t column = 0; column < kColumns; ++column)
                for (int64_t columns = 1; column + columns <= kColumns; ++columns)
                    boxes.push_back(box(row, rows, column, columns));
    return boxes;
}

std::vector<int64_t> numbers_of(const Box& of) {
    std::vector<int64_t> numbers;
    for (const Range& row : contiguous_ranges({of}))
        for (int64_t i = row.begin; i < row.end(); ++i) numbers.push_back(i);
    return numbers;
}

TEST(TensorBoxTest, NamesSayWhichNumbers) {
    const Shape shape{kRows, kColumns};
    EXPECT_EQ(piece_name("master/a", shape, Box::of({0, kNumel})), "master/a");
    EXPECT_EQ(piece_name("master/a", shape, Box::of({3, 14})), "master/a[3:17]");
    EXPECT_EQ(piece_name("master/a", shape, box(1, 1, 2, 3)), "master/a[7:10]");
    EXPECT_EQ(piece_name("master/a", shape, box(1, 3, 2, 2)), "master/a[1:4,2:4]");
    EXPECT_EQ(piece_shape(shape, Box::of({0, kNumel})), shape);
    EXPECT_EQ(piece_shape(shape, Box::of({3, 14})), Shape{14});
    EXPECT_EQ(piece_shape(shape, box(1, 3, 2, 2)), (Shape{3, 2}));
    for (const Box& each : all_boxes()) {
        const PieceName name = parse_piece_name(piece_name("master/a", shape, each));
        EXPECT_EQ(name.tensor, "master/a");
        const std::optional<Box> again = box_of(name, shape);
        ASSERT_TRUE(again);
        EXPECT_EQ(numbers_of(*again), numbers_of(each)) << piece_name("master/a", shape, each);
    }
    EXPECT_THROW(piece_name("a", {kNumel}, box(1, 2, 2, 2)), Error);
    EXPECT_THROW(piece_name("a", shape, {.begin = 4, .rows = 2, .columns = 2, .stride = kColumns}), Error);
    EXPECT_THROW(piece_name("a", shape, {.begin = 0, .rows = 2, .columns = 2, .stride = 4}), Error);
}

TEST(TensorBoxTest, OtherNamesAreThoseOfTensors) {
    for (const char* name : {"",
                             "]",
                             "[",
                             "[]",
                             "master/a",
                             "master/a[b]",
                             "master/a[1:",
                             "master/a[:]",
                             "master/a[2:1]",
                             "master/a[1:2x]",
                             "master/a[-1:2]",
                             "master/a[1:2:3]",
                             "master/a[1:2,]",
                             "master/a[,1:2]",
                             "master/a[1:2,3]",
                             "master/a[1:2,3:2]",
                             "master/a[1:2,3:4,5:6]",
                             "master/a[1:2, 3:4]",
                             "master/a[1:9223372036854775808]",
                             "master/a[1:2]b"}) {
        EXPECT_EQ(parse_piece_name(name).tensor, name);
        EXPECT_TRUE(parse_piece_name(name).ranges.empty()) << name;
    }
}

TEST(TensorBoxTest, NumbersThatATensorLacks) {
    const auto has = [](const std::string& name, const Shape& shape) {
        return box_of(parse_piece_name(name), shape).has_value();
    };
    EXPECT_TRUE(has("a[0:20]", {4, 5}));
    EXPECT_FALSE(has("a[0:21]", {4, 5}));
    EXPECT_TRUE(has("a[0:4,0:5]", {4, 5}));
    EXPECT_FALSE(has("a[0:5,0:1]", {4, 5}));
    EXPECT_FALSE(has("a[0:1,0:6]", {4, 5}));
    EXPECT_FALSE(has("a[0:1,0:1]", {20}));
    EXPECT_FALSE(has("a[0:1,0:1]", {4, 5, 1}));
    EXPECT_FALSE(has("a[0:9223372036854775807]", {4, 5}));
    EXPECT_FALSE(has("a[9223372036854775806:9223372036854775807,0:1]", {4, 5}));
}

TEST(TensorBoxTest, OverlapsAreTheNumbersThatBothHave) {
    const std::vector<Box> boxes = all_boxes();
    for (const Box& first : boxes) {
        const std::vector<int64_t> of_first = numbers_of(first);
        for (const Box& second : boxes) {
            const std::vector<int64_t> of_second = numbers_of(second);
            std::map<int64_t, int64_t> expected, actual;
            for (const int64_t number : of_first)
                for (size_t i = 0; i < of_second.size(); ++i)
                    if (of_second[i] == number) expected[number] = static_cast<int64_t>(i);
            for (const Overlap& overlap : overlaps_of(first, second)) {
                EXPECT_GT(overlap.count, 0);
                for (int64_t i = 0; i < overlap.count; ++i) {
                    const int64_t number = of_first.at(static_cast<size_t>(overlap.in_first + i));
                    EXPECT_TRUE(actual.emplace(number, overlap.in_second + i).second);
                }
            }
            ASSERT_EQ(actual, expected) << piece_name("a", {kRows, kColumns}, first) << " and "
                                        << piece_name("a", {kRows, kColumns}, second);
        }
    }
    EXPECT_EQ(overlaps_of(box(0, 4, 1, 2), box(0, 4, 1, 2)).size(), 1u)
        << "rows that follow each other are one";
}

TEST(TensorBoxTest, CoverageFindsGapsAndWhatIsThereTwice) {
    const auto expect = [](const std::vector<Box>& boxes, int64_t reached, bool twice) {
        const Coverage coverage = coverage_of(boxes);
        EXPECT_EQ(coverage.reached, reached);
        EXPECT_EQ(coverage.twice, twice);
    };
    const Box left = box(0, 4, 0, 2), right = box(0, 4, 2, 3);
    expect({left, right}, kNumel, false);
    expect({right, left, Box::of({7, 0}), box(1, 0, 1, 3)}, kNumel, false);
    expect({left, box(0, 3, 2, 3), Box::of({17, 3})}, kNumel, false);
    expect({right}, 0, false);
    expect({left}, 2, false);
    expect({left, box(0, 4, 3, 2)}, 2, false);
    expect({left, box(0, 3, 2, 3)}, 17, false);
    expect({left, left, right}, 0, true);
    expect({left, right, Box::of({12, 1})}, 12, true);
    expect({left, box(0, 4, 1, 4)}, 1, true);
    expect({Box::of({0, 10}), Box::of({9, 11})}, 9, true);
    expect({}, 0, false);
}

}  // namespace speedrun::testing::tensor_box_test
