#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::normuon_test {

SPEEDRUN_OP_TEST(NormuonTest);

struct Batch {
    int64_t n, rows, cols;
};
// The last three: several rounds of a warp over a row, chunks of rows, and blocks of columns.
constexpr Batch kBatches[] = {{1, 16, 48}, {3, 33, 7},    {2, 7, 130},  {1, 96, 96},  {2, 1, 5},
                              {1, 5, 1},   {1, 310, 304}, {2, 70, 304}, {1, 40, 1104}};

// Rows and columns of very different magnitudes, so that the factor of another line would be detected.
Matrix uneven(const Batch& b, uint64_t seed, DType dtype) {
    Matrix u = random_matrix(b.n * b.rows, b.cols, seed, dtype);
    for (int64_t r = 0; r < u.rows; ++r) {
        for (int64_t c = 0; c < u.cols; ++c)
            u(r, c) *= static_cast<double>((1 + r % 5) * (1 + c % 3)) * (r / b.rows == 1 ? 8.0 : 1.0);
    }
    return rounded(u, dtype);
}

Tensor one(Harness& h, double value) {
    return h.input(Matrix(1, 1, value), DType::f32, {1});
}

constexpr float kBeta2 = 0.75f;

struct Rule {
    NormuonLines lines;
    float epsilon;
};
// One epsilon is as large as the root mean squares.
constexpr Rule kRules[] = {
    {NormuonLines::more, 1e-8f}, {NormuonLines::rows, 1e-8f}, {NormuonLines::columns, 2.0f}};

struct BatchAndRule {
    Batch batch;
    Rule rule;
};
std::vector<BatchAndRule> all_cases() {
    std::vector<BatchAndRule> cases;
    for (const Batch& batch : kBatches)
        for (const Rule& rule : kRules) cases.push_back({batch, rule});
    return cases;
}

TEST_P(NormuonTest, TwoSteps) {
    for (const auto& [b, rule] : all_cases()) {
        const int64_t lines = num_lines(rule.lines, b.rows, b.cols);
        SCOPED_TRACE(
            fmt::format("[{},{},{}], {} lines, epsilon {}", b.n, b.rows, b.cols, lines, rule.epsilon));
        const Matrix first = uneven(b, 1, dtype()), second = uneven(b, 2, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor v = h.inout(Matrix(b.n, lines), DType::f32);
            const Tensor u = h.inout(first, dtype(), {b.n, b.rows, b.cols}),
                         w = h.inout(second, dtype(), {b.n, b.rows, b.cols});
            for (const Tensor& update : {u, w})
                h.call(op::NormuonScale{.update = update,
                                        .second_moment = v,
                                        .grad_scale = one(h, 0.25),
                                        .beta2 = kBeta2,
                                        .lines = rule.lines,
                                        .epsilon = rule.epsilon});
            return {h.read(u), h.read(w), h.read(v)};
        });
        // Sums of squares do not cancel: the errors of up to R·C roundings are relative.
        const double sums = (16 + 8 * std::sqrt(static_cast<double>(b.rows * b.cols))) * kF32Roundoff;
        const Tolerance of_u{sums + (dtype() == DType::bf16 ? kBf16Ulp : 0.0)};
        for (int64_t i = 0; i < b.n; ++i) {
            const auto part = [&](const Matrix& x) { return reference::row_block(x, i * b.rows, b.rows); };
            Matrix u = part(first), w = part(second), v(1, lines);
            reference::normuon_scale(u, v, kBeta2, rule.lines, rule.epsilon);
            reference::normuon_scale(w, v, kBeta2, rule.lines, rule.epsilon);
            expect_close(part(out[0]), u, of_u, "first");
            expect_close(part(out[1]), w, of_u, "second");
            expect_close(reference::row_block(out[2], i, 1), v, {sums}, "second moment");
        }
    }
}

TEST(NormuonLinesTest, RowsOrColumnsByShape) {
    EXPECT_TRUE(by_row(NormuonLines::more, 3, 2));
    EXPECT_TRUE(by_row(NormuonLines::more, 3, 3));
    EXPECT_FALSE(by_row(NormuonLines::more, 2, 3));
    EXPECT_EQ(num_lines(NormuonLines::more, 2, 3), 3);
    for (const int64_t rows : {2, 3, 4}) {
        EXPECT_EQ(num_lines(NormuonLines::rows, rows, 3), rows);
        EXPECT_EQ(num_lines(NormuonLines::columns, rows, 3), 3);
    }
}

TEST_P(NormuonTest, ZeroUpdateDecaysMoments) {
    for (const Batch& b : {Batch{1, 16, 48}, Batch{1, 48, 16}}) {
        check([&](Harness& h) -> Checks {
            const Tensor v = h.inout(Matrix(1, 48, 2.0), DType::f32);
            const Tensor u = h.inout(Matrix(b.rows, b.cols), dtype(), {1, b.rows, b.cols});
            h.call(op::NormuonScale{
                .update = u, .second_moment = v, .grad_scale = one(h, 1.0), .beta2 = kBeta2});
            return {{u, Matrix(b.rows, b.cols), "update"}, {v, Matrix(1, 48, 1.5), "second moment"}};
        });
    }
}

TEST_P(NormuonTest, NonFiniteScaleSkipsStep) {
    for (const Batch& b : {Batch{2, 7, 33}, Batch{2, 33, 7}}) {
        const Matrix u = random_matrix(2 * b.rows, b.cols, 1, dtype()),
                     v = random_matrix(2, 33, 2, DType::f32);
        sweep(std::tuple{std::array{std::nan(""), HUGE_VAL}}, [&](double bad) {
            check([&](Harness& h) -> Checks {
                const Tensor update = h.inout(u, dtype(), {2, b.rows, b.cols}),
                             moment = h.inout(v, DType::f32);
                h.call(op::NormuonScale{
                    .update = update, .second_moment = moment, .grad_scale = one(h, bad), .beta2 = kBeta2});
                return {{update, u, "update"}, {moment, v, "second moment"}};
            });
        });
    }
}

}  // namespace speedrun::testing::normuon_test
