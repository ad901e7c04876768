// Attention of queries at given places among the keys: the queries of one rank, which has chunks r and 2C − 1
// − r of each sequence cut into 2C, and other placements.
#include "tests/kernels/attention_support.h"

namespace speedrun::testing::attention_place_test {

using namespace attention;
using reference::QueryPositions;

SPEEDRUN_OP_TEST(AttentionPlaceTest);

struct PlacedCase {
    Case of;
    int64_t ranks;    // C; 0: `queries` queries at equal distances
    int64_t queries;  // queries per sequence; computed if ranks > 0
};
constexpr PlacedCase kCases[] = {
    // Chunks of whole tiles, with each window: none, within a chunk, longer than a chunk, as long as the
    // sequence.
    {{256, 1, 1, 64, 0, 0.125f, Documents::whole, true}, 2, 0},
    {{256, 1, 1, 64, 20, 0.125f, Documents::mixed, true}, 2, 0},
    {{256, 1, 1, 128, 100, 0.1f, Documents::mixed, false}, 2, 0},
    {{512, 1, 1, 64, 130, 0.125f, Documents::whole, false}, 2, 0},
    // Chunks that end next to a vector, strip or tile boundary; the last chunks have padding rows.
    {{90, 2, 2, 64, 0, 0.125f, Documents::mixed, true}, 3, 0},
    {{203, 2, 1, 128, 0, 0.1f, Documents::mixed, true}, 2, 0},
    {{203, 1, 2, 64, 40, 0.125f, Documents::whole, false}, 3, 0},
    {{203, 1, 1, 32, 66, 0.18f, Documents::mixed, true}, 2, 0},
    {{97, 2, 2, 24, 5, 0.2f, Documents::mixed, true}, 3, 0},
    {{330, 2, 1, 16, 0, 0.25f, Documents::whole, true}, 3, 0},
    {{65, 2, 1, 48, 0, 2.0f, Documents::mixed, false}, 2, 0},  // nearly one-hot
    // Chunks of a few rows, some of which are only padding.
    {{19, 3, 3, 16, 5, 0.25f, Documents::mixed, true}, 3, 0},
    {{7, 3, 2, 32, 0, 0.2f, Documents::whole, true}, 2, 0},
    {{2, 3, 1, 64, 0, 0.125f, Documents::whole, false}, 3, 0},
    {{1, 5, 1, 16, 0, 0.25f, Documents::whole, true}, 2, 0},
    // One query per sequence, sparse queries, and several queries at each place.
    {{70, 3, 2, 64, 0, 0.125f, Documents::mixed, false}, 0, 1},
    {{300, 1, 1, 64, 30, 0.125f, Documents::mixed, true}, 0, 11},
    {{300, 1, 1, 128, 0, 0.1f, Documents::whole, true}, 0, 50},
    {{40, 2, 1, 64, 9, 0.125f, Documents::mixed, true}, 0, 130},
    {{130, 1, 2, 16, 0, 0.25f, Documents::mixed, false}, 0, 290},
    {{70, 1, 4, 128, 0, 0.1f, Documents::whole, false}, 0, 70},  // rows of 512 elements; one query per key
    // Heads of q and k, and of v and o, of two widths.
    {{256, 1, 2, 64, 100, 0.125f, Documents::mixed, true, 128}, 2, 0},
    {{203, 1, 2, 128, 0, 0.1f, Documents::mixed, false, 64}, 3, 0},
    {{203, 2, 2, 96, 66, 0.1f, Documents::whole, true, 128}, 2, 0},
    {{97, 2, 2, 24, 5, 0.2f, Documents::mixed, true, 40}, 3, 0},
    {{40, 2, 2, 64, 9, 0.125f, Documents::mixed, true, 128}, 0, 130},
    {{130, 1, 2, 40, 0, 0.15f, Documents::mixed, false, 24}, 0, 11},
};

int64_t num_ranks(const PlacedCase& c) {
    return std::max<int64_t>(c.ranks, 1);
}

// Places of a rank's queries in one sequence. Padding has the place of the last key.
std::vector<int64_t> places_of(const PlacedCase& c, int64_t rank) {
    const int64_t length = c.of.sequence_length;
    std::vector<int64_t> places;
    for (int64_t i = 0; i < c.queries; ++i) places.push_back(i * length / c.queries);
    const int64_t chunk = c.ranks > 0 ? (length + 2 * c.ranks - 1) / (2 * c.ranks) : 0;
    for (const int64_t index : {rank, 2 * c.ranks - 1 - rank}) {
        for (int64_t i = 0; i < chunk; ++i) places.push_back(std::min(index * chunk + i, length - 1));
    }
    return places;
}

// Keys and values of whole sequences, and the queries of one rank.
struct Placed {
    int64_t of_sequence;
    Indices place, first_key, row;  // row: global row of each query
    Matrix k, v, q, dout;

    Placed(const PlacedCase& c, int64_t rank, DType dtype) {
        const Inputs all(c.of, dtype);
        const Matrix gradients = random_matrix(all.rows, all.value_width, 4, dtype);
        const std::vector<int64_t> places = places_of(c, rank);
        of_sequence = static_cast<int64_t>(places.size());
        k = all.k;
        v = all.v;
        q = Matrix(c.of.num_sequences * of_sequence, all.width);
        dout = Matrix(q.rows, all.value_width);
        for (int64_t s = 0; s < c.of.num_sequences; ++s) {
            for (int64_t i = 0; i < of_sequence; ++i) {
                const int64_t at = s * c.of.sequence_length + places[static_cast<size_t>(i)];
                place.push_back(static_cast<int32_t>(places[static_cast<size_t>(i)]));
                first_key.push_back(all.first_key[static_cast<size_t>(at)]);
                row.push_back(static_cast<int32_t>(at));
                // Rows at one place differ, so that reading the wrong one is detected.
                const double factor = is_copy(i, places) ? 0.5 : 1.0;
                for (int64_t d = 0; d < all.width; ++d) q(s * of_sequence + i, d) = factor * all.q(at, d);
                for (int64_t d = 0; d < all.value_width; ++d)
                    dout(s * of_sequence + i, d) = factor * gradients(at, d);
            }
        }
    }
    // True if query i of a sequence has the place of the query before it.
    static bool is_copy(int64_t i, const std::vector<int64_t>& places) {
        return i > 0 && places[static_cast<size_t>(i)] == places[static_cast<size_t>(i - 1)];
    }
    QueryPositions places() const { return {place, of_sequence}; }
};

std::string describe(const PlacedCase& c, int64_t rank) {
    return fmt::format("{} rank {} of {} queries={}", attention::describe(c.of), rank, c.ranks, c.queries);
}

// The operands that forward and backward share.
template <class Arguments>
void set_operands(Harness& h, const PlacedCase& c, const Placed& in, bool with_place, Arguments& a) {
    const std::vector<Tensor> kv = upload(h, {&in.k, &in.v}, a.q.dtype, c.of.packed);
    a.k = kv[0];
    a.v = kv[1];
    a.first_key = h.input(in.first_key);
    if (with_place) a.place = h.input(in.place);
    a.options = options_of(c.of);
}

// o, lse.
Outputs forward(Harness& h, const PlacedCase& c, const Placed& in, DType dtype, bool with_place = true) {
    op::AttentionForward a{};
    a.o = h.output(in.dout, dtype, margin_of(c.of.packed));
    a.lse = h.output(DType::f32, {c.of.num_heads, in.q.rows});
    a.q = upload(h, {&in.q, &in.dout}, dtype, c.of.packed)[0];
    set_operands(h, c, in, with_place, a);
    h.call(a);
    return {h.read(a.o), h.read(a.lse)};
}

// dq, dk, dv from these forward results.
Outputs backward(Harness& h, const PlacedCase& c, const Placed& in, const Matrix& o, const Matrix& lse,
                 DType dtype, bool with_place = true) {
    const std::vector<Tensor> q = upload(h, {&in.q, &in.dout}, dtype, c.of.packed);
    const Margin margin = margin_of(c.of.packed);
    op::AttentionBackward a{};
    a.dq = h.output(in.q, dtype, margin);
    a.dk = h.output(in.k, dtype, margin);
    a.dv = h.output(in.v, dtype, margin);
    a.dout = q[1];
    a.o = h.input(o, dtype);
    a.lse = h.input(lse, DType::f32);
    a.q = q[0];
    set_operands(h, c, in, with_place, a);
    h.call(a);
    return {h.read(a.dq), h.read(a.dk), h.read(a.dv)};
}

TEST_P(AttentionPlaceTest, Forward) {
    for (const PlacedCase& c : kCases) {
        for (int64_t rank = 0; rank < num_ranks(c); ++rank) {
            SCOPED_TRACE(describe(c, rank));
            const Placed in(c, rank, dtype());
            const Outputs out = run([&](Harness& h) { return forward(h, c, in, dtype()); });
            const auto expected =
                reference::attention_forward(in.q, in.k, in.v, in.first_key, options_of(c.of), in.places());
            expect_close(out[0], expected.o, tolerance_of(c.of, dtype()), "o");
            Tolerance of_lse = tolerance_of(c.of, DType::f32);
            of_lse.absolute = 16 * kF32Roundoff;
            expect_close(out[1], expected.lse, of_lse, "lse");
        }
    }
}

TEST_P(AttentionPlaceTest, Backward) {
    for (const PlacedCase& c : kCases) {
        for (int64_t rank = 0; rank < num_ranks(c); ++rank) {
            SCOPED_TRACE(describe(c, rank));
            const Placed in(c, rank, dtype());
            const auto results =
                reference::attention_forward(in.q, in.k, in.v, in.first_key, options_of(c.of), in.places());
            const Outputs out =
                run([&](Harness& h) { return backward(h, c, in, results.o, results.lse, dtype()); });
            const auto expected = reference::attention_backward(in.dout, in.q, in.k, in.v, in.first_key,
                                                                options_of(c.of), in.places());
            int64_t num_seen = 0;
            for (int64_t j = 0; j < in.k.rows; ++j) {
                bool seen = false;
                for (int64_t i = 0; i < in.q.rows; ++i)
                    seen |= reference::visible(i, j, in.first_key, options_of(c.of), in.places());
                num_seen += seen;
                if (seen) continue;
                expect_same_bits(reference::row_block(out[1], j, 1), Matrix(1, in.k.cols),
                                 fmt::format("dk of unseen {}", j));
                expect_same_bits(reference::row_block(out[2], j, 1), Matrix(1, in.v.cols),
                                 fmt::format("dv of unseen {}", j));
            }
            // The mean square of all rows includes zeros of unseen keys. If several queries share a place,
            // their errors add up in sums that may cancel.
            const double rows_of_zeros = std::sqrt(static_cast<double>(in.k.rows) / num_seen);
            const double at_place = std::max(
                1.0, static_cast<double>(in.of_sequence) / static_cast<double>(c.of.sequence_length));
            Tolerance of_keys = tolerance_of_gradient(c.of, dtype()), of_values = tolerance_of(c.of, dtype());
            for (Tolerance* tolerance : {&of_keys, &of_values}) {
                tolerance->scaled *= at_place * rows_of_zeros;
                tolerance->absolute *= at_place;
            }
            expect_close(out[0], expected.dq, tolerance_of_gradient(c.of, dtype()), "dq");
            expect_close(out[1], expected.dk, of_keys, "dk");
            expect_close(out[2], expected.dv, of_values, "dv");
        }
    }
}

// With one query at each key's place, the bits equal those without places.
TEST_P(AttentionPlaceTest, ConsecutivePlacesEqualNone) {
    for (const Case& of : {Case{256, 1, 1, 64, 100, 0.125f, Documents::mixed, true},
                           Case{203, 2, 1, 128, 0, 0.1f, Documents::mixed, false},
                           Case{97, 2, 2, 24, 30, 0.2f, Documents::whole, true},
                           Case{203, 1, 2, 64, 0, 0.125f, Documents::mixed, false, 128},
                           Case{203, 1, 2, 128, 0, 0.1f, Documents::mixed, false, 64}}) {
        const PlacedCase c{of, 0, of.sequence_length};
        SCOPED_TRACE(describe(c, 0));
        const Placed in(c, 0, dtype());
        const auto attend = [&](bool with_place) {
            return run([&](Harness& h) -> Outputs {
                Outputs out = forward(h, c, in, dtype(), with_place);
                for (Matrix& gradient : backward(h, c, in, out[0], out[1], dtype(), with_place))
                    out.push_back(std::move(gradient));
                return out;
            });
        };
        const Outputs with = attend(true), without = attend(false);
        for (size_t i = 0; i < with.size(); ++i)
            expect_same_bits(with[i], without[i], fmt::format("output {}", i));
    }
}

// C ranks compute the results of one rank. Rows of queries have equal bits, as hidden tiles of keys add zeros
// to their sums. Gradients of keys are sums in another order.
TEST_P(AttentionPlaceTest, RanksTogetherEqualOneRank) {
    for (const PlacedCase& c : kCases) {
        if (c.ranks == 0) continue;
        const PlacedCase whole{c.of, 0, c.of.sequence_length};
        const Placed all(whole, 0, dtype());
        const Outputs expected = run([&](Harness& h) { return forward(h, whole, all, dtype(), false); }, {2});
        const Outputs gradients =
            run([&](Harness& h) { return backward(h, whole, all, expected[0], expected[1], dtype(), false); },
                {2});
        Matrix dk(all.k.rows, all.k.cols), dv(all.v.rows, all.v.cols);
        int64_t rows_found = 0;
        for (int64_t rank = 0; rank < c.ranks; ++rank) {
            SCOPED_TRACE(describe(c, rank));
            Placed in(c, rank, dtype());
            std::vector<bool> padding;  // must receive no gradient
            for (int64_t i = 0; i < in.q.rows; ++i) {
                const int64_t chunk = in.of_sequence / 2, at = i % in.of_sequence,
                              first = (at < chunk ? rank : 2 * c.ranks - 1 - rank) * chunk;
                padding.push_back(first + at % chunk >= c.of.sequence_length);
                if (!padding.back()) continue;
                for (int64_t d = 0; d < in.dout.cols; ++d) in.dout(i, d) = 0.0;
            }
            const Outputs out = run([&](Harness& h) { return forward(h, c, in, dtype()); }, {2});
            const Outputs own =
                run([&](Harness& h) { return backward(h, c, in, out[0], out[1], dtype()); }, {2});
            for (int64_t i = 0; i < in.q.rows; ++i) {
                if (padding[static_cast<size_t>(i)]) continue;
                ++rows_found;
                const int64_t row = in.row[static_cast<size_t>(i)];
                expect_same_bits(reference::row_block(out[0], i, 1),
                                 reference::row_block(expected[0], row, 1), "o");
                for (int64_t head = 0; head < c.of.num_heads; ++head)
                    EXPECT_EQ(out[1](head, i), expected[1](head, row)) << "lse of " << row;
                expect_same_bits(reference::row_block(own[0], i, 1),
                                 reference::row_block(gradients[0], row, 1), "dq");
            }
            for (int64_t i = 0; i < dk.size(); ++i) dk[i] += own[1][i];
            for (int64_t i = 0; i < dv.size(); ++i) dv[i] += own[2][i];
        }
        SCOPED_TRACE(describe(c, 0));
        EXPECT_EQ(rows_found, all.q.rows);
        // Each rank's part is rounded to the type, and so is the whole.
        Tolerance of_keys = tolerance_of_gradient(c.of, dtype()), of_values = tolerance_of(c.of, dtype());
        const double terms = static_cast<double>(c.ranks + 1);
        for (Tolerance* tolerance : {&of_keys, &of_values}) tolerance->scaled *= terms;
        expect_close(dk, gradients[1], of_keys, "dk");
        expect_close(dv, gradients[2], of_values, "dv");
    }
}

// Ranks that split sequences evenly have equal counted work.
TEST_P(AttentionPlaceTest, CountsFlopsByQueries) {
    const PlacedCase c{{24, 2, 2, 16, 0, 0.25f, Documents::whole, false}, 2, 0};
    const PlacedCase whole{c.of, 0, 24}, wide{{24, 2, 2, 16, 0, 0.25f, Documents::whole, false, 40}, 0, 24};
    const auto flops = [&](const PlacedCase& of, bool with_place) {
        int64_t count[2];
        run(
            [&](Harness& h) -> Outputs {
                const Placed in(of, 0, dtype());
                const int64_t before = h.ops().flops();
                const Outputs out = forward(h, of, in, dtype(), with_place);
                count[0] = h.ops().flops() - before;
                backward(h, of, in, out[0], out[1], dtype(), with_place);
                count[1] = h.ops().flops() - before - count[0];
                return {};
            },
            {1});
        return std::pair(count[0], count[1]);
    };
    const std::pair<int64_t, int64_t> all(4 * 2 * 2 * 16 * (24 * 25 / 2), 8 * 2 * 2 * 16 * (24 * 25 / 2));
    EXPECT_EQ(flops(whole, false), all);
    EXPECT_EQ(flops(whole, true), all);
    EXPECT_EQ(flops(c, true), std::pair(all.first / 2, all.second / 2));
    const int64_t pairs_of_heads = 2 * 2 * (24 * 25 / 2), both_widths = 2 * (16 + 40) * pairs_of_heads;
    EXPECT_EQ(flops(wide, false), std::pair(both_widths, 2 * both_widths));
}

}  // namespace speedrun::testing::attention_place_test
