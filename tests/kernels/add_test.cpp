#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::add_test {

SPEEDRUN_OP_TEST(AddTest);

// One addition: rounded to nearest, bit for bit.
TEST_P(AddTest, Sums) {
    sweep(std::tuple{Ints{1, 7, 33, 130}, Ints{0, 1, 2}}, [&](int64_t rows, int64_t alias) {
        const int64_t cols = rows == 7 ? 33 : 96;
        const Matrix x = random_matrix(rows, cols, 1, dtype()), z = random_matrix(rows, cols, 2, dtype());
        check([&](Harness& h) -> Checks {
            const Tensor tx = alias == 1 ? h.inout(x, dtype()) : h.input(x, dtype());
            const Tensor tz = alias == 2 ? h.inout(z, dtype()) : h.input(z, dtype());
            const Tensor y = alias == 1 ? tx : alias == 2 ? tz : h.output(dtype(), {rows, cols});
            h.call(op::Add{.y = y, .x = tx, .z = tz});
            return {{y, rounded(reference::plus(x, z), dtype()), "y"}};
        });
    });
}

TEST_P(AddTest, ShapeErrors) {
    expect_error(
        [&](Harness& h) {
            const Tensor x = h.output(dtype(), {3, 48});
            h.call(op::Add{.y = x, .x = x, .z = h.output(dtype(), {4, 48})});
        },
        {"[3,48]", "[4,48]"});
}

}  // namespace speedrun::testing::add_test
