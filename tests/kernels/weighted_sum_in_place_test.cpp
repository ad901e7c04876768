// Weighted sums with outputs that alias inputs.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::weighted_sum_in_place_test {

SPEEDRUN_OP_TEST(WeightedSumInPlaceTest);

TEST_P(WeightedSumInPlaceTest, ForwardAndBackward) {
    const Matrix x = random_matrix(33, 48, 1, dtype()), z = random_matrix(33, 48, 2, dtype());
    check([&](Harness& h) -> Checks {
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
        return {{y, reference::weighted_sum_forward({{x, {}, 0.5}, {z, {}, 1.0, true}}, 11), "y",
                 few_operations(dtype())},
                {dy, reference::times(z, 0.5), "dy", few_operations(dtype())}};
    });
}

// Any term's dsource may alias dy, which the terms after it still read.
TEST_P(WeightedSumInPlaceTest, AnyTermMayAliasDy) {
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
        check([&](Harness& h) -> Checks {
            const Tensor upstream = h.inout(dy, dtype());
            TermGradients gradients{};
            WeightedTerms given;
            Checks checks;
            for (size_t j = 0; j < terms.size(); ++j) {
                const bool is_number = terms[j].coefficient.rows == 1;
                given[j] = {
                    .source = h.input(terms[j].source, dtype()),
                    .coefficient = is_number ? h.input(number, DType::f32, {1}) : h.input(gate, DType::f32),
                    .factor = static_cast<float>(terms[j].factor)};
                TermGradient& g = gradients[j];
                g.dsource = j == in_place ? upstream : h.output(dtype(), {kRows, kCols});
                g.dcoefficient =
                    is_number ? h.output(DType::f32, {1}) : h.output(DType::f32, {kRows, kHeads});
                checks.push_back({g.dsource, expected[j].dsource, "ds", few_operations(dtype())});
                checks.push_back({g.dcoefficient, expected[j].dcoefficient, "dc",
                                  cancelling(is_number ? kRows * kCols : kHeadSize)});
            }
            h.call(op::WeightedSumBackward{
                .gradients = gradients, .dy = upstream, .terms = given, .sequence_length = kLength});
            return checks;
        });
    }
}

}  // namespace speedrun::testing::weighted_sum_in_place_test
