// What every backend checks before it enqueues: shapes and types of the operations in kernels/ops/ops.h. Each
// throws with the actual values.
#pragma once

#include <array>

#include "kernels/ops/ops.h"

namespace speedrun {

void check_norm_forward(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta, Tensor gain,
                        Tensor bias, NormKind kind);
void check_norm_backward(Tensor ds, Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean, Tensor rstd,
                         Tensor gain, Tensor dresidual, NormKind kind);
void check_mix_norm_forward(Tensor y, Tensor sum, Tensor entered, Tensor mean, Tensor rstd, Tensor x,
                            Tensor delta, const MixWith& mix, Tensor gain, Tensor bias, NormKind kind);
void check_mix_norm_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dgain, Tensor dbias,
                             Tensor dy, Tensor s, Tensor entered, const MixWith& mix, Tensor mean,
                             Tensor rstd, Tensor gain, Tensor dresidual, NormKind kind);
void check_rotary(Tensor q, Tensor k, Tensor rstd, Tensor cos, Tensor sin, Tensor position,
                  const RotaryOptions& options);
void check_value_mix(const ValueMix& value, Tensor q);
// operands: all that have the shape and type of q.
void check_attention(Tensor q, Tensor lse, Tensor first_key, std::initializer_list<Tensor> operands,
                     const AttentionOptions& options);
void check_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                         const CrossEntropyOptions& options);
void check_adamw_step(Tensor parameter, Tensor master, Tensor first_moment, Tensor second_moment, Tensor grad,
                      Tensor grad_scale);
void check_muon_momentum(Tensor update, Tensor momentum, Tensor grad, Tensor grad_scale);
void check_normuon_scale(Tensor update, Tensor second_moment, Tensor grad_scale);
void check_muon_apply(Tensor parameter, Tensor master, Tensor update, Tensor grad_scale);

// Query-key pairs that causality and the window leave, of one head of one sequence, documents aside: the work
// of attention as flops() counts it.
int64_t visible_pairs(const AttentionOptions& options);

struct PolarCoefficients {
    float a, b, c;
};
// The five iterations of the reference recipe (Polar Express, Amsel et al. 2025, with its safety factor).
constexpr std::array<PolarCoefficients, 5> kPolarExpress = {{
    {8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
    {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
    {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
    {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
    {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f},
}};
static_assert(kPolarExpress.size() % 2 ==
              1);  // iterations swap two buffers: the last one writes to the second

}  // namespace speedrun
