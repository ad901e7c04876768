// Ids outside their table: the CPU throws with both numbers, before any memory access.
#include "tests/errors.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::cpu_ids_test {

void expect_refused(const std::function<void(Harness&)>& body, const std::string& message) {
    Harness h(*backends().front(), 1);
    expect_error(ExitCode::data, {message}, [&] {
        body(h);
        h.stream().synchronize();
    });
}

struct Id {
    int32_t value;
    bool others;
};
// Tables have 9 rows. With `others`, id 9 marks a row of another rank.
constexpr Id kOutside[] = {{-1, false}, {9, false}, {-1, true}, {10, true}};

TEST(CpuIdsTest, Embedding) {
    for (const Id& id : kOutside) {
        const std::string message = fmt::format("token {} at row 1 is outside the table of 9 rows", id.value);
        SCOPED_TRACE(fmt::format("{}, others {}", message, id.others));
        expect_refused(
            [&](Harness& h) {
                h.call(op::EmbeddingForward{.out = h.output(DType::f32, {2, 16}),
                                            .index = h.input(Indices{3, id.value}),
                                            .table = h.output(DType::f32, {9, 16}),
                                            .others = id.others});
            },
            message);
        expect_refused(
            [&](Harness& h) {
                h.call(op::SortIds{.order = h.output(DType::i32, {2, 2}),
                                   .index = h.input(Indices{3, id.value}),
                                   .limit = 9,
                                   .others = id.others});
            },
            message);
        expect_refused(
            [&](Harness& h) {
                h.call(op::EmbeddingBackward{.dtable = h.output(DType::f32, {9, 16}),
                                             .order = h.input(Indices{3, id.value, 0, 1}).reshaped({2, 2}),
                                             .dout = h.output(DType::f32, {2, 16}),
                                             .accumulate = false,
                                             .others = id.others});
            },
            message);
    }
}

TEST(CpuIdsTest, PositionsMustBeInTable) {
    expect_refused(
        [](Harness& h) {
            h.call(op::EmbeddingForward{.out = h.output(DType::f32, {2, 16}),
                                        .index = h.input(Indices{3, 9}),
                                        .table = h.output(DType::f32, {9, 16}),
                                        .position = h.input(Indices{0, 5}),
                                        .position_table = h.output(DType::f32, {5, 16}),
                                        .others = true});
        },
        "position 5 at row 1 is outside the table of 5 rows");
}

// Targets are ids of the whole vocabulary, for any columns of the part.
TEST(CpuIdsTest, CrossEntropy) {
    for (const int32_t target : {-2, 40}) {
        const std::string message = fmt::format("target {} at row 1 is outside the vocabulary of 40", target);
        SCOPED_TRACE(message);
        expect_refused(
            [&](Harness& h) {
                h.call(op::CrossEntropy{.losses = h.output(DType::f32, {2}),
                                        .logits = h.output(DType::f32, {2, 48}),
                                        .targets = h.input(Indices{3, target}),
                                        .vocab_size = 40});
            },
            message);
        expect_refused(
            [&](Harness& h) {
                h.call(op::CrossEntropyPart{.part = h.output(DType::f32, {2, 2}),
                                            .logits = h.output(DType::f32, {2, 24}),
                                            .targets = h.input(Indices{3, target}),
                                            .first = 0,
                                            .vocab_size = 20,
                                            .whole_vocab_size = 40});
            },
            message);
        expect_refused(
            [&](Harness& h) {
                h.call(op::CrossEntropyOfParts{.losses = h.output(DType::f32, {2}),
                                               .logits = h.output(DType::f32, {2, 24}),
                                               .parts = h.output(DType::f32, {4, 2}),
                                               .targets = h.input(Indices{3, target}),
                                               .first = 0,
                                               .vocab_size = 20,
                                               .whole_vocab_size = 40});
            },
            message);
    }
}

}  // namespace speedrun::testing::cpu_ids_test
