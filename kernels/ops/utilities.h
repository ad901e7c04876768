// Fills, casts, sums, vector norms, and random values.
#pragma once

#include <vector>

#include "kernels/ops/op.h"

namespace speedrun {

enum class VectorNorm : uint8_t { one, two, three, infinity };  // p of (Σ|x|^p)^(1/p); infinity: max|x|

}  // namespace speedrun

namespace speedrun::op {

struct Fill {
    ByName by_name = ByName();
    Tensor x;  // any real
    float value;

    void check() const { expect_flat(x, "fill"); }
    void traffic(Traffic& t) const { t.writes(x); }
};

// x *= factor.
struct Scale {
    ByName by_name = ByName();
    Tensor x;  // any real
    float factor;

    void check() const { expect_flat(x, "scale"); }
    void traffic(Traffic& t) const { t.updates(x); }
};

// Converts between f32 and bf16, or copies.
struct Cast {
    ByName by_name = ByName();
    Tensor out;  // f32 or bf16
    Tensor in;   // f32 or bf16, numel of out

    void check() const {
        expect_flat(out, "cast out");
        expect_flat(in, "cast in");
        if (out.numel() != in.numel())
            throw_internal("cast: {} does not fit {}", in.describe(), out.describe());
    }
    void traffic(Traffic& t) const {
        t.writes(out);
        t.reads(in);
    }
};

// Terms of a vector's p-norm, each from a piece of it: Σ|x|^p, or max|x| for infinity. 0 for an empty piece; NaN if x has
// one.
struct NormTerm {
    struct Piece {
        Tensor out;  // f32 [1]
        Tensor x;    // real [n]
    };
    ByName by_name = ByName();
    std::vector<Piece> pieces;  // all x of one type
    VectorNorm norm;

    void check() const {
        for (const Piece& piece : pieces) {
            expect(piece.out, DType::f32, {1}, "norm_term out");
            expect_flat(piece.x, "norm_term");
            if (piece.x.dtype != pieces.front().x.dtype)
                throw_internal("norm_term: {} and {} differ in type", piece.x.describe(),
                               pieces.front().x.describe());
        }
    }
    void traffic(Traffic& t) const {
        for (const Piece& piece : pieces) {
            t.writes(piece.out);
            t.reads(piece.x);
        }
    }
};

// out (+)= Σ x.
struct Sum {
    ByName by_name = ByName();
    Tensor out;  // f32 [1]
    Tensor x;    // f32 [n]
    bool accumulate;

    void check() const {
        expect(out, DType::f32, {1}, "sum out");
        expect_flat(x, "sum");
        if (x.dtype != DType::f32) throw_internal("sum: f32 is needed, not {}", x.describe());
    }
    void traffic(Traffic& t) const {
        t.adds_to(accumulate, out);
        t.reads(x);
    }
};

// Number of elements of x that are infinite or NaN.
struct CountNonfinite {
    ByName by_name = ByName();
    Tensor out;  // f32 [1]
    Tensor x;    // real [n]

    void check() const {
        expect(out, DType::f32, {1}, "count_nonfinite out");
        expect_flat(x, "count_nonfinite");
    }
    void traffic(Traffic& t) const {
        t.writes(out);
        t.reads(x);
    }
};

// norm = (Σ terms)^(1/p), or max terms for infinity; coefficient = min(1, max_norm/norm), 1 if max_norm = 0, NaN if
// norm is not finite. (Pascanu et al. 2013, algorithm 1, for p = 2.)
struct ClipCoefficient {
    ByName by_name = ByName();
    Tensor coefficient;  // f32 [1]
    Tensor norm;         // f32 [1]
    Tensor terms;        // f32 [n], outputs of NormTerm; a NaN or infinity among them propagates to norm
    float max_norm;
    VectorNorm kind;

    void check() const {
        expect(coefficient, DType::f32, {1}, "clip coefficient");
        expect(norm, DType::f32, {1}, "clip norm");
        expect(terms, DType::f32, {terms.numel()}, "clip terms");
    }
    void traffic(Traffic& t) const {
        t.writes(coefficient, norm);
        t.reads(terms);
    }
};

// x[i] = normal with mean 0 and this deviation: Philox4x32-10 of (seed, sequence; offset + i), so that an element's
// value depends only on its index.
struct RandomNormal {
    ByName by_name = ByName();
    Tensor x;  // f32 [n]
    uint64_t seed;
    uint64_t sequence;
    int64_t offset;  // index of x[0] in the parameter
    float deviation;

    void check() const { expect(x, DType::f32, {x.numel()}, "random_normal x"); }
    void traffic(Traffic& t) const { t.writes(x); }
};

// As RandomNormal, but uniform in ±bound.
struct RandomUniform {
    ByName by_name = ByName();
    Tensor x;  // f32 [n]
    uint64_t seed;
    uint64_t sequence;
    int64_t offset;
    float bound;

    void check() const { expect(x, DType::f32, {x.numel()}, "random_uniform x"); }
    void traffic(Traffic& t) const { t.writes(x); }
};

#define SPEEDRUN_UTILITY_OPS(X)          \
    X(fill, Fill)                        \
    X(scale, Scale)                      \
    X(cast, Cast)                        \
    X(norm_term, NormTerm)               \
    X(sum, Sum)                          \
    X(count_nonfinite, CountNonfinite)   \
    X(clip_coefficient, ClipCoefficient) \
    X(random_normal, RandomNormal)       \
    X(random_uniform, RandomUniform)

}  // namespace speedrun::op
