// Attention of queries without a visible key.
#include <limits>

#include "tests/kernels/attention_support.h"

namespace speedrun::testing::attention_no_keys_test {

using namespace attention;

SPEEDRUN_OP_TEST(AttentionNoKeysTest);

// Queries before all keys, and queries with a first key after the last visible one. Forward writes o = 0 and lse =
// −∞. Backward skips exactly these queries.
TEST_P(AttentionNoKeysTest, QueriesWithoutKeysAreZero) {
    for (const auto& [dim, value_dim] :
         {std::pair<int64_t, int64_t>{24, 24}, {64, 64}, {128, 128}, {64, 128}, {128, 64}, {40, 24}}) {
        for (const int64_t seeing : {0, 1, 70}) {  // last queries that see keys, per sequence
            SCOPED_TRACE(fmt::format("D={}/{} seeing={}", dim, value_dim, seeing));
            constexpr int64_t kKeys = 150, kQueries = 200, kSequences = 2;
            const AttentionOptions options{kKeys, 2, dim, 0, 0.15f};
            const Matrix q = random_matrix(kSequences * kQueries, 2 * dim, 1, dtype()),
                         k = random_matrix(kSequences * kKeys, 2 * dim, 2, dtype()),
                         v = random_matrix(kSequences * kKeys, 2 * value_dim, 3, dtype()),
                         dout = random_matrix(kSequences * kQueries, 2 * value_dim, 4, dtype());
            reference::QueryPositions places{.of_sequence = kQueries};
            Indices first;
            for (int32_t s = 0; s < kSequences; ++s) {
                for (int32_t i = 0; i < kQueries; ++i) {
                    const bool sees = i >= kQueries - seeing, behind = i >= 100;
                    places.place.push_back(sees || behind ? 20 + i / 2 : -1);
                    first.push_back(s * static_cast<int32_t>(kKeys) + (sees ? 7 : behind ? 21 + i / 2 : 0));
                }
            }
            const Outputs out = run([&](Harness& h) -> Outputs {
                const op::AttentionForward f{.o = h.output(dtype(), {dout.rows, dout.cols}),
                                             .lse = h.output(DType::f32, {2, q.rows}),
                                             .q = h.input(q, dtype()),
                                             .k = h.input(k, dtype()),
                                             .v = h.input(v, dtype()),
                                             .first_key = h.input(first),
                                             .place = h.input(places.place),
                                             .options = options};
                const op::AttentionBackward b{.dq = h.output(dtype(), {q.rows, q.cols}),
                                              .dk = h.output(dtype(), {k.rows, k.cols}),
                                              .dv = h.output(dtype(), {v.rows, v.cols}),
                                              .dout = h.input(dout, dtype()),
                                              .o = f.o,
                                              .lse = f.lse,
                                              .q = f.q,
                                              .k = f.k,
                                              .v = f.v,
                                              .first_key = f.first_key,
                                              .place = f.place,
                                              .options = options};
                h.call(f);
                h.call(b);
                return {h.read(f.o), h.read(f.lse), h.read(b.dq), h.read(b.dk), h.read(b.dv)};
            });
            const auto expected = reference::attention_forward(q, k, v, first, options, places);
            const auto gradients = reference::attention_backward(dout, q, k, v, first, options, places);
            const Case as{kKeys, kSequences, 2, dim, 0, 0.15f, Documents::whole, false, value_dim};
            for (int64_t i = 0; i < q.rows; ++i) {
                if (i % kQueries >= kQueries - seeing) continue;
                expect_same_bits(reference::row_block(out[0], i, 1), Matrix(1, v.cols),
                                 fmt::format("o of {}", i));
                expect_same_bits(reference::row_block(out[2], i, 1), Matrix(1, q.cols),
                                 fmt::format("dq of {}", i));
                for (int64_t head = 0; head < 2; ++head)
                    ASSERT_EQ(out[1](head, i), -std::numeric_limits<double>::infinity()) << "lse of " << i;
            }
            // Rows of zeros lower the mean square that tolerances are relative to.
            Tolerance tolerance = tolerance_of(as, dtype()), of_gradient = tolerance_of_gradient(as, dtype());
            for (Tolerance* each : {&tolerance, &of_gradient})
                each->scaled *= std::sqrt(static_cast<double>(kQueries) /
                                          static_cast<double>(std::max<int64_t>(1, seeing)));
            expect_close(out[0], expected.o, tolerance, "o");
            expect_close(out[2], gradients.dq, of_gradient, "dq");
            expect_close(out[3], gradients.dk, of_gradient, "dk");
            expect_close(out[4], gradients.dv, tolerance, "dv");
        }
    }
}

}  // namespace speedrun::testing::attention_no_keys_test
