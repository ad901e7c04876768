// Weighted sums with outputs that alias inputs.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace weighted_sum_in_place_test {

SPEEDRUN_OP_TEST(WeightedSumInPlaceTest);

// Σ dy·s over `products` terms may nearly cancel: compared relative to its typical size √products.
Tolerance of_sum(int64_t products) {
    return {16 * kF32Roundoff, 0, 8 * static_cast<double>(products) * kF32Roundoff};
}

TEST_P(WeightedSumInPlaceTest, ForwardAndBackward) {
    const Matrix x = random_matrix(33, 48, 1, dtype()), z = random_matrix(33, 48, 2, dtype());
    const Outputs out = run([&](Harness& h) -> Outputs {
        const Tensor y = h.inout(x, dtype()), dy = h.inout(z, dtype());
        h.call(op::WeightedSumForward{
            .y = y,
            .terms = {{{.source = y, .factor = 0.5f}, {.source = h.input(z, dtype()), .shifted = true}}},
            .sequence_length = 11});
        h.call(op::WeightedSumBackward{
            .gradients = {{{.dsource = dy, .accumulate_source = false, .accumulate_coefficient = false}}},
            .dy = dy,
            .terms = {{{.source = y, .factor = 0.5f}}},
            .sequence_length = 11});
        return {h.read(y), h.read(dy)};
    });
    expect_close(out[0], reference::weighted_sum_forward({{x, {}, 0.5}, {z, {}, 1.0, true}}, 11),
                 few_operations(dtype()), "y");
    expect_close(out[1], reference::times(z, 0.5), few_operations(dtype()), "dy");
}

// Any term's dsource may alias dy, which the terms after it still read.
TEST_P(WeightedSumInPlaceTest, EveryTerm) {
    constexpr int64_t kRows = 33, kLength = 11, kHeads = 3, kHeadSize = 16, kCols = kHeads * kHeadSize;
    const Matrix dy = random_matrix(kRows, kCols, 1, dtype());
    const Matrix number(1, 1, 0.75), gate = random_matrix(kRows, kHeads, 2, DType::f32);
    const std::vector<reference::WeightedTerm> terms = {
        {random_matrix(kRows, kCols, 3, dtype()), number},
        {random_matrix(kRows, kCols, 4, dtype()), gate},
        {random_matrix(kRows, kCols, 5, dtype()), number, -0.5}};
    const auto expected = reference::weighted_sum_backward(dy, terms, kLength);
    for (size_t in_place = 0; in_place < terms.size(); ++in_place) {
        SCOPED_TRACE(in_place);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor upstream = h.inout(dy, dtype());
            TermGradients gradients{};
            WeightedTerms given;
            for (size_t j = 0; j < terms.size(); ++j) {
                const bool is_number = terms[j].coefficient.rows == 1;
                given[j] = {
                    .source = h.input(terms[j].source, dtype()),
                    .coefficient = is_number ? h.input(number, DType::f32, {1}) : h.input(gate, DType::f32),
                    .factor = static_cast<float>(terms[j].factor)};
                gradients[j].dsource = j == in_place ? upstream : h.output(dtype(), {kRows, kCols});
                gradients[j].dcoefficient =
                    is_number ? h.output(DType::f32, {1}) : h.output(DType::f32, {kRows, kHeads});
            }
            h.call(op::WeightedSumBackward{
                .gradients = gradients, .dy = upstream, .terms = given, .sequence_length = kLength});
            Outputs result;
            for (size_t j = 0; j < terms.size(); ++j) {
                result.push_back(h.read(gradients[j].dsource));
                result.push_back(h.read(gradients[j].dcoefficient));
            }
            return result;
        });
        for (size_t j = 0; j < terms.size(); ++j) {
            expect_close(out[2 * j], expected[j].dsource, few_operations(dtype()), "ds");
            expect_close(out[2 * j + 1], expected[j].dcoefficient,
                         of_sum(terms[j].coefficient.rows == 1 ? kRows * kCols : kHeadSize), "dc");
        }
    }
}

}  // namespace weighted_sum_in_place_test
}  // namespace speedrun::testing
