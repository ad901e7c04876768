// Attention over keys that come in pieces: each alone, of which a query may see nothing, and merged.
#include <limits>
#include <numeric>

#include "tests/kernels/attention_support.h"

namespace speedrun::testing {
namespace attention_merge_test {

using namespace attention;

SPEEDRUN_OP_TEST(AttentionMergeTest);

struct PiecedCase {
    Case of;
    int64_t pieces;  // of the keys of a sequence: chunks c and 2C − 1 − c of 2C
};
constexpr PiecedCase kCases[] = {
    {{256, 1, 1, 64, 0, 0.125f, Documents::whole, false}, 2},
    {{256, 1, 1, 128, 70, 0.1f, Documents::whole, false}, 2},
    {{203, 2, 1, 64, 0, 0.125f, Documents::mixed, true}, 3},
    {{203, 1, 1, 128, 40, 0.1f, Documents::whole, true}, 2},
    {{97, 2, 2, 24, 5, 0.2f, Documents::mixed, true}, 3},
    {{330, 1, 1, 16, 0, 0.25f, Documents::whole, false}, 5},
    {{19, 3, 3, 16, 0, 0.25f, Documents::mixed, true}, 4},
    {{70, 1, 1, 48, 1, 0.2f, Documents::whole, false}, 2},     // all see themselves alone
    {{40, 2, 1, 64, 0, 0.125f, Documents::single, false}, 3},  // likewise
};

// Keys of one piece: of each sequence those at these places, one behind the other.
struct Piece {
    std::vector<int64_t> places;
    Indices place, first_key;  // of each query among them
    int64_t pairs = 0;

    Piece(const PiecedCase& c, int64_t index, const Inputs& in) {
        const int64_t length = c.of.sequence_length, chunk = (length + 2 * c.pieces - 1) / (2 * c.pieces);
        for (const int64_t at : {index, 2 * c.pieces - 1 - index})
            for (int64_t i = at * chunk; i < std::min((at + 1) * chunk, length); ++i) places.push_back(i);
        const auto below = [&](int64_t end) {
            return std::lower_bound(places.begin(), places.end(), end) - places.begin();
        };
        for (int64_t i = 0; i < in.rows; ++i) {
            const int64_t sequence = i / length, at = i % length;
            const int64_t oldest = c.of.window > 0 ? at - c.of.window + 1 : 0;
            const int64_t first =
                below(std::max(oldest, in.first_key[static_cast<size_t>(i)] - sequence * length));
            place.push_back(static_cast<int32_t>(below(at + 1) - 1));
            first_key.push_back(static_cast<int32_t>(sequence * size() + first));
            pairs += below(at + 1) - first;
        }
    }
    int64_t size() const { return static_cast<int64_t>(places.size()); }
    // Its rows of a matrix of all keys.
    Matrix of(const Matrix& all, const PiecedCase& c) const {
        Matrix own(c.of.num_sequences * size(), all.cols);
        for_rows(c, [&](int64_t row, int64_t in_all) {
            for (int64_t d = 0; d < all.cols; ++d) own(row, d) = all(in_all, d);
        });
        return own;
    }
    void put(Matrix& all, const Matrix& own, const PiecedCase& c) const {
        for_rows(c, [&](int64_t row, int64_t in_all) {
            for (int64_t d = 0; d < all.cols; ++d) all(in_all, d) = own(row, d);
        });
    }
    AttentionOptions options(const PiecedCase& c) const {
        AttentionOptions options = options_of(c.of);
        options.sequence_length = size();
        options.window = 0;
        options.visible_pairs = pairs;
        return options;
    }

  private:
    template <class Body>
    void for_rows(const PiecedCase& c, const Body& body) const {
        for (int64_t s = 0; s < c.of.num_sequences; ++s)
            for (int64_t i = 0; i < size(); ++i)
                body(s * size() + i, s * c.of.sequence_length + places[static_cast<size_t>(i)]);
    }
};

std::vector<Piece> pieces_of(const PiecedCase& c, const Inputs& in) {
    std::vector<Piece> pieces;
    for (int64_t index = 0; index < c.pieces; ++index) {
        Piece piece(c, index, in);
        if (piece.size() > 0) pieces.push_back(std::move(piece));
    }
    return pieces;
}

std::string describe(const PiecedCase& c) {
    return fmt::format("{} pieces={}", attention::describe(c.of), c.pieces);
}

TEST_P(AttentionMergeTest, ForwardIsThatOverAllKeys) {
    for (const PiecedCase& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c.of, dtype());
        const std::vector<Piece> pieces = pieces_of(c, in);
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor q = upload(h, {&in.q, &in.v}, dtype(), c.of.packed)[0];
            const Tensor sum = h.output(DType::f32, {in.rows, in.width});
            Tensor lse, before;
            for (const Piece& piece : pieces) {
                const Matrix keys = piece.of(in.k, c), values = piece.of(in.v, c);
                const std::vector<Tensor> kv = upload(h, {&keys, &values}, dtype(), c.of.packed);
                const Margin o = output(h, in.rows, in.width, dtype(), c.of.packed);
                const Tensor lse_of_o = h.output(DType::f32, {c.of.num_heads, in.rows});
                h.ops().attention_forward({.o = o.inner,
                                           .lse = lse_of_o,
                                           .q = q,
                                           .k = kv[0],
                                           .v = kv[1],
                                           .first_key = h.input(piece.first_key),
                                           .place = h.input(piece.place),
                                           .options = piece.options(c)},
                                          h.stream());
                lse = h.output(DType::f32, {c.of.num_heads, in.rows});
                h.ops().merge_attention(
                    {.sum = sum, .lse = lse, .lse_before = before, .o = o.inner, .lse_of_o = lse_of_o},
                    h.stream());
                before = lse;
            }
            return {h.read(sum), h.read(lse)};
        });
        const auto expected = reference::attention_forward(in.q, in.k, in.v, in.first_key, options_of(c.of));
        // Each piece's o is rounded to the type, the sum of them is not.
        expect_close(out[0], expected.o, tolerance_of(c.of, dtype()), "o");
        Tolerance of_lse = tolerance_of(c.of, DType::f32);
        of_lse.absolute = 16 * kF32Roundoff;
        expect_close(out[1], expected.lse, of_lse, "lse");
    }
}

TEST_P(AttentionMergeTest, BackwardIsThatOverAllKeys) {
    for (const PiecedCase& c : kCases) {
        SCOPED_TRACE(describe(c));
        const Inputs in(c.of, dtype());
        const Matrix dout = random_matrix(in.rows, in.width, 4, dtype());
        const std::vector<Piece> pieces = pieces_of(c, in);
        const auto results = reference::attention_forward(in.q, in.k, in.v, in.first_key, options_of(c.of));
        const Outputs out = run([&](Harness& h) -> Outputs {
            const std::vector<Tensor> q = upload(h, {&in.q, &dout}, dtype(), c.of.packed);
            const Tensor o = h.input(results.o, dtype()), lse = h.input(results.lse, DType::f32);
            const Tensor sum = h.output(DType::f32, {in.rows, in.width});
            Outputs gradients(1);
            for (size_t i = 0; i < pieces.size(); ++i) {
                const Piece& piece = pieces[i];
                const Matrix keys = piece.of(in.k, c), values = piece.of(in.v, c);
                const std::vector<Tensor> kv = upload(h, {&keys, &values}, dtype(), c.of.packed);
                const Margin dq = output(h, in.rows, in.width, dtype(), c.of.packed),
                             dk = output(h, keys.rows, in.width, dtype(), c.of.packed),
                             dv = output(h, keys.rows, in.width, dtype(), c.of.packed);
                h.ops().attention_backward({.dq = dq.inner,
                                            .dk = dk.inner,
                                            .dv = dv.inner,
                                            .dout = q[1],
                                            .o = o,
                                            .lse = lse,
                                            .q = q[0],
                                            .k = kv[0],
                                            .v = kv[1],
                                            .first_key = h.input(piece.first_key),
                                            .place = h.input(piece.place),
                                            .options = piece.options(c)},
                                           h.stream());
                h.ops().accumulate({.sum = sum, .x = dq.inner, .accumulate = i > 0}, h.stream());
                gradients.push_back(h.read(dk.inner));
                gradients.push_back(h.read(dv.inner));
            }
            gradients[0] = h.read(sum);
            return gradients;
        });
        Matrix dk(in.rows, in.width), dv = dk;
        for (size_t i = 0; i < pieces.size(); ++i) {
            pieces[i].put(dk, out[1 + 2 * i], c);
            pieces[i].put(dv, out[2 + 2 * i], c);
        }
        const auto expected =
            reference::attention_backward(dout, in.q, in.k, in.v, in.first_key, options_of(c.of));
        // What cancels in a token that sees itself alone is rounded in each piece.
        Tolerance of_queries = tolerance_of_gradient(c.of, dtype());
        of_queries.absolute *= static_cast<double>(pieces.size());
        expect_close(out[0], expected.dq, of_queries, "dq");
        expect_close(dk, expected.dk, tolerance_of_gradient(c.of, dtype()), "dk");
        expect_close(dv, expected.dv, tolerance_of(c.of, dtype()), "dv");
    }
}

// Queries before all keys, and queries whose first key is behind the last that they see; with o = 0 and lse = −∞, as they
// come from the forward, they and nothing else are left out of the backward.
TEST_P(AttentionMergeTest, QueriesWithoutKeysAreZero) {
    for (const int64_t dim : {24, 64, 128}) {
        for (const int64_t seeing : {0, 1, 70}) {  // the last of 200 queries of each of two sequences
            SCOPED_TRACE(fmt::format("D={} seeing={}", dim, seeing));
            constexpr int64_t kKeys = 150, kQueries = 200, kSequences = 2;
            const AttentionOptions options{kKeys, 2, dim, 0, 0.15f};
            const Matrix q = random_matrix(kSequences * kQueries, 2 * dim, 1, dtype()),
                         k = random_matrix(kSequences * kKeys, 2 * dim, 2, dtype()),
                         v = random_matrix(kSequences * kKeys, 2 * dim, 3, dtype()),
                         dout = random_matrix(kSequences * kQueries, 2 * dim, 4, dtype());
            reference::QueryPlaces places{.of_sequence = kQueries};
            Indices first;
            for (int32_t s = 0; s < kSequences; ++s) {
                for (int32_t i = 0; i < kQueries; ++i) {
                    const bool sees = i >= kQueries - seeing, behind = i >= 100;
                    places.place.push_back(sees || behind ? 20 + i / 2 : -1);
                    first.push_back(s * static_cast<int32_t>(kKeys) + (sees ? 7 : behind ? 21 + i / 2 : 0));
                }
            }
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor tq = h.input(q, dtype()), tk = h.input(k, dtype()), tv = h.input(v, dtype()),
                             o = h.output(dtype(), {q.rows, q.cols}), lse = h.output(DType::f32, {2, q.rows}),
                             dq = h.output(dtype(), {q.rows, q.cols}),
                             dk = h.output(dtype(), {k.rows, k.cols}),
                             dv = h.output(dtype(), {k.rows, k.cols}), first_key = h.input(first),
                             place = h.input(places.place);
                h.ops().attention_forward({.o = o,
                                           .lse = lse,
                                           .q = tq,
                                           .k = tk,
                                           .v = tv,
                                           .first_key = first_key,
                                           .place = place,
                                           .options = options},
                                          h.stream());
                h.ops().attention_backward({.dq = dq,
                                            .dk = dk,
                                            .dv = dv,
                                            .dout = h.input(dout, dtype()),
                                            .o = o,
                                            .lse = lse,
                                            .q = tq,
                                            .k = tk,
                                            .v = tv,
                                            .first_key = first_key,
                                            .place = place,
                                            .options = options},
                                           h.stream());
                return {h.read(o), h.read(lse), h.read(dq), h.read(dk), h.read(dv)};
            });
            const auto expected = reference::attention_forward(q, k, v, first, options, places);
            const auto gradients = reference::attention_backward(dout, q, k, v, first, options, places);
            const Case as{kKeys, kSequences, 2, dim, 0, 0.15f, Documents::whole, false};
            const Matrix zeros(1, q.cols);
            for (int64_t i = 0; i < q.rows; ++i) {
                if (i % kQueries >= kQueries - seeing) continue;
                expect_same_bits(reference::row_block(out[0], i, 1), zeros, fmt::format("o of {}", i));
                expect_same_bits(reference::row_block(out[2], i, 1), zeros, fmt::format("dq of {}", i));
                for (int64_t head = 0; head < 2; ++head)
                    ASSERT_EQ(out[1](head, i), -std::numeric_limits<double>::infinity()) << "lse of " << i;
            }
            // Half of the rows and more are zero.
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

// Nothing with nothing is nothing, and with something that.
TEST_P(AttentionMergeTest, NothingAddsNothing) {
    const double nothing = -std::numeric_limits<double>::infinity();
    const Matrix o = random_matrix(3, 32, 1, dtype()), zeros(3, 32);
    const Matrix lse = random_matrix(2, 3, 2, DType::f32), none(2, 3, nothing);
    const auto merged = [&](const Matrix& before, const Matrix& lse_before, const Matrix& added,
                            const Matrix& lse_added) {
        return run([&](Harness& h) -> Outputs {
            const Tensor sum = h.inout(before, DType::f32), out = h.output(DType::f32, {2, 3});
            h.ops().merge_attention({.sum = sum,
                                     .lse = out,
                                     .lse_before = h.input(lse_before, DType::f32),
                                     .o = h.input(added, dtype()),
                                     .lse_of_o = h.input(lse_added, DType::f32)},
                                    h.stream());
            return {h.read(sum), h.read(out)};
        });
    };
    for (const bool first : {true, false}) {
        const Outputs out = first ? merged(o, lse, zeros, none) : merged(zeros, none, o, lse);
        expect_same_bits(out[0], o, "sum");
        expect_close(out[1], lse, {0, 4 * kF32Roundoff, 0}, "lse");
    }
    const Outputs out = merged(zeros, none, zeros, none);
    expect_same_bits(out[0], zeros, "sum");
    expect_same_bits(out[1], none, "lse");
}

TEST_P(AttentionMergeTest, ShapeErrors) {
    expect_error(
        [&](Harness& h) {
            const Tensor lse = h.output(DType::f32, {5, 3});
            h.ops().merge_attention({.sum = h.output(DType::f32, {3, 32}),
                                     .lse = lse,
                                     .o = h.output(dtype(), {3, 32}),
                                     .lse_of_o = lse},
                                    h.stream());
        },
        {"[3,32]", "5 heads"});
    expect_error(
        [&](Harness& h) {
            const Tensor lse = h.output(DType::f32, {2, 3});
            h.ops().merge_attention({.sum = h.output(DType::f32, {3, 32}),
                                     .lse = lse,
                                     .lse_before = lse,
                                     .o = h.output(dtype(), {3, 32}),
                                     .lse_of_o = h.output(DType::f32, {2, 3})},
                                    h.stream());
        },
        {"lse_before", "is lse"});
}

}  // namespace attention_merge_test
}  // namespace speedrun::testing
