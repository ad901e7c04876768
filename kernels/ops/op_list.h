// Every operation of kernels/ops/ops.h as X(name, roles, (parameters), (arguments)): classes that pass
// operations on are generated from this list, so an operation that is missing here leaves them abstract and
// the build fails.
//
// roles: what the operation does with each of its tensors, in the order of its arguments (those in a MixWith
// or ValueMix are known by their place there), from which MeteredOps counts the least bytes that it moves:
//   r, w, u  read; written; read and written
//   .        scratch memory, not counted
//   a, z     written, or read and written where the first, the second bool (or MatmulOptions) says accumulate
//   g        a table, of which the rows that the second tensor names are read
//   s        the same written: all of it, or those rows read and written where it accumulates
//   p        written, unless it is the tensor behind it
//   q, n, o  of RotaryOptions: u if it normalises or rotates at all, r if it normalises, r if it rotates
#pragma once

// clang-format off
#define SPEEDRUN_EACH_OP(X)                                                                                  \
    X(embedding_forward, "wrgrg",                                                                            \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Stream& s), (a, b, c, d, e, s))                     \
    X(sort_ids, "wr", (Tensor a, Tensor b, int64_t c, Stream& s), (a, b, c, s))                              \
    X(embedding_backward, "srr", (Tensor a, Tensor b, Tensor c, bool d, Stream& s), (a, b, c, d, s))         \
    X(matmul, "arrr",                                                                                        \
      (Tensor a, Tensor b, Tensor c, Tensor d, const MatmulOptions& o, Stream& s),                           \
      (a, b, c, d, o, s))                                                                                    \
    X(column_sum, "ar", (Tensor a, Tensor b, bool c, Stream& s), (a, b, c, s))                               \
    X(norm_forward, "wwwwrrrr",                                                                              \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, NormKind k,           \
       Stream& s), (a, b, c, d, e, f, g, h, k, s))                                                           \
    X(norm_backward, "waarrrrrr",                                                                            \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, Tensor i, bool j,     \
       NormKind k, Stream& s), (a, b, c, d, e, f, g, h, i, j, k, s))                                         \
    X(mix_norm_forward, "wwwwwrrrr",                                                                         \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, const MixWith& m, Tensor h,     \
       Tensor i, NormKind k, Stream& s), (a, b, c, d, e, f, g, m, h, i, k, s))                               \
    X(mix_norm_backward, "wzaaarrrrrrr",                                                                     \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, const MixWith& m,     \
       Tensor i, Tensor j, Tensor k, Tensor l, bool n, bool o, NormKind p, Stream& s),                       \
      (a, b, c, d, e, f, g, h, m, i, j, k, l, n, o, p, s))                                                   \
    X(activation_forward, "wr", (Tensor a, Tensor b, Activation c, Stream& s), (a, b, c, s))                 \
    X(activation_backward, "wrr", (Tensor a, Tensor b, Tensor c, Activation d, Stream& s), (a, b, c, d, s))  \
    X(mix_backward, "wzarrrr",                                                                               \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, bool h, bool i, Stream& s),     \
      (a, b, c, d, e, f, g, h, i, s))                                                                        \
    X(add, "wrr", (Tensor a, Tensor b, Tensor c, Stream& s), (a, b, c, s))                                   \
    X(qk_norm_rotary_forward, "qqwooo",                                                                      \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, const ValueMix& v,                        \
       const RotaryOptions& o, Stream& s), (a, b, c, d, e, f, v, o, s))                                      \
    X(qk_norm_rotary_backward, "qqnnnooo",                                                                   \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h,                       \
       const RotaryOptions& o, Stream& s), (a, b, c, d, e, f, g, h, o, s))                                   \
    X(attention_forward, "wwrrrr",                                                                           \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, const AttentionOptions& o, Stream& s),    \
      (a, b, c, d, e, f, o, s))                                                                              \
    X(attention_backward, "wwwrrrrrrr",                                                                      \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, Tensor i, Tensor j,   \
       const AttentionOptions& o, Stream& s), (a, b, c, d, e, f, g, h, i, j, o, s))                          \
    X(cross_entropy, "wwrr",                                                                                 \
      (Tensor a, Tensor b, Tensor c, Tensor d, const CrossEntropyOptions& o, Stream& s),                     \
      (a, b, c, d, o, s))                                                                                    \
    X(adamw_step, "puuurr",                                                                                  \
      (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, const AdamwOptions& o, Stream& s),        \
      (a, b, c, d, e, f, o, s))                                                                              \
    X(muon_momentum, "wurr",                                                                                 \
      (Tensor a, Tensor b, Tensor c, Tensor d, const MuonMomentumOptions& o, Stream& s),                     \
      (a, b, c, d, o, s))                                                                                    \
    X(gram, "wr", (Tensor a, Tensor b, Stream& s), (a, b, s))                                                \
    X(polar_express, "u.", (Tensor a, Tensor b, Stream& s), (a, b, s))                                       \
    X(normuon_scale, "uur",                                                                                  \
      (Tensor a, Tensor b, Tensor c, const NormuonOptions& o, Stream& s), (a, b, c, o, s))                   \
    X(muon_apply, "purr",                                                                                    \
      (Tensor a, Tensor b, Tensor c, Tensor d, const MuonApplyOptions& o, Stream& s),                        \
      (a, b, c, d, o, s))                                                                                    \
    X(fill, "w", (Tensor a, float b, Stream& s), (a, b, s))                                                  \
    X(scale, "u", (Tensor a, float b, Stream& s), (a, b, s))                                                 \
    X(cast, "wr", (Tensor a, Tensor b, Stream& s), (a, b, s))                                                \
    X(norm_term, "wr", (Tensor a, Tensor b, VectorNorm n, Stream& s), (a, b, n, s))                          \
    X(sum, "ar", (Tensor a, Tensor b, bool c, Stream& s), (a, b, c, s))                                      \
    X(count_nonfinite, "wr", (Tensor a, Tensor b, Stream& s), (a, b, s))                                     \
    X(clip_coefficient, "wwr",                                                                               \
      (Tensor a, Tensor b, Tensor c, float d, VectorNorm n, Stream& s), (a, b, c, d, n, s))                  \
    X(random_normal, "w",                                                                                    \
      (Tensor a, uint64_t b, uint64_t c, int64_t d, float e, Stream& s), (a, b, c, d, e, s))                 \
    X(random_uniform, "w",                                                                                   \
      (Tensor a, uint64_t b, uint64_t c, int64_t d, float e, Stream& s), (a, b, c, d, e, s))
// clang-format on
