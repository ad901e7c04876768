// Every operation of kernels/ops.h as X(name, (parameters), (arguments)): RecordingOps is generated from this
// list, so an operation that is missing here leaves that class abstract and the build fails.
#pragma once

// clang-format off
#define SPEEDRUN_EACH_OP(X)                                                                                       \
    X(embedding_forward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Stream& s), (a, b, c, d, e, s))       \
    X(embedding_backward, (Tensor a, Tensor b, Tensor c, bool d, Stream& s), (a, b, c, d, s))                     \
    X(matmul, (Tensor a, Tensor b, Tensor c, Tensor d, const MatmulOptions& o, Stream& s), (a, b, c, d, o, s))    \
    X(column_sum, (Tensor a, Tensor b, bool c, Stream& s), (a, b, c, s))                                          \
    X(norm_forward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, NormKind k,  \
                     Stream& s), (a, b, c, d, e, f, g, h, k, s))                                                  \
    X(norm_backward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, Tensor i,   \
                      bool j, NormKind k, Stream& s), (a, b, c, d, e, f, g, h, i, j, k, s))                       \
    X(mix_norm_forward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, const MixWith& m,  \
                         Tensor h, Tensor i, NormKind k, Stream& s), (a, b, c, d, e, f, g, m, h, i, k, s))        \
    X(mix_norm_backward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h,         \
                          const MixWith& m, Tensor i, Tensor j, Tensor k, Tensor l, bool n, bool o, NormKind p,   \
                          Stream& s), (a, b, c, d, e, f, g, h, m, i, j, k, l, n, o, p, s))                        \
    X(activation_forward, (Tensor a, Tensor b, Activation c, Stream& s), (a, b, c, s))                            \
    X(activation_backward, (Tensor a, Tensor b, Tensor c, Activation d, Stream& s), (a, b, c, d, s))              \
    X(mix_backward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, bool h, bool i,        \
                     Stream& s), (a, b, c, d, e, f, g, h, i, s))                                                  \
    X(add, (Tensor a, Tensor b, Tensor c, Stream& s), (a, b, c, s))                                               \
    X(qk_norm_rotary_forward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f,                        \
                               const ValueMix& v, const RotaryOptions& o, Stream& s),                             \
      (a, b, c, d, e, f, v, o, s))                                                                                \
    X(qk_norm_rotary_backward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h,   \
                                const RotaryOptions& o, Stream& s), (a, b, c, d, e, f, g, h, o, s))               \
    X(attention_forward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, const AttentionOptions& o,  \
                          Stream& s), (a, b, c, d, e, f, o, s))                                                   \
    X(attention_backward, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h,        \
                           Tensor i, Tensor j, const AttentionOptions& o, Stream& s),                             \
      (a, b, c, d, e, f, g, h, i, j, o, s))                                                                       \
    X(cross_entropy, (Tensor a, Tensor b, Tensor c, Tensor d, const CrossEntropyOptions& o, Stream& s),           \
      (a, b, c, d, o, s))                                                                                         \
    X(adamw_step, (Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, const AdamwOptions& o, Stream& s), \
      (a, b, c, d, e, f, o, s))                                                                                   \
    X(muon_momentum, (Tensor a, Tensor b, Tensor c, Tensor d, const MuonMomentumOptions& o, Stream& s),           \
      (a, b, c, d, o, s))                                                                                         \
    X(gram, (Tensor a, Tensor b, Stream& s), (a, b, s))                                                           \
    X(polar_express, (Tensor a, Tensor b, Stream& s), (a, b, s))                                                  \
    X(normuon_scale, (Tensor a, Tensor b, Tensor c, const NormuonOptions& o, Stream& s), (a, b, c, o, s))         \
    X(muon_apply, (Tensor a, Tensor b, Tensor c, Tensor d, const MuonApplyOptions& o, Stream& s),                 \
      (a, b, c, d, o, s))                                                                                         \
    X(fill, (Tensor a, float b, Stream& s), (a, b, s))                                                            \
    X(scale, (Tensor a, float b, Stream& s), (a, b, s))                                                           \
    X(cast, (Tensor a, Tensor b, Stream& s), (a, b, s))                                                           \
    X(norm_term, (Tensor a, Tensor b, VectorNorm n, Stream& s), (a, b, n, s))                                     \
    X(sum, (Tensor a, Tensor b, bool c, Stream& s), (a, b, c, s))                                                 \
    X(count_nonfinite, (Tensor a, Tensor b, Stream& s), (a, b, s))                                                \
    X(clip_coefficient, (Tensor a, Tensor b, Tensor c, float d, VectorNorm n, Stream& s), (a, b, c, d, n, s))     \
    X(random_normal, (Tensor a, uint64_t b, uint64_t c, int64_t d, float e, Stream& s), (a, b, c, d, e, s))       \
    X(random_uniform, (Tensor a, uint64_t b, uint64_t c, int64_t d, float e, Stream& s), (a, b, c, d, e, s))
// clang-format on
