// What every backend checks before it enqueues: shapes and types of the operations of kernels/ops. Each
// throws with the actual values.
#pragma once

#include <array>
#include <initializer_list>

#include "kernels/ops/ops.h"

namespace speedrun {

void check(const op::NormForward& a);
void check(const op::NormBackward& a);
void check(const op::MixNormForward& a);
void check(const op::SumNormForward& a);
void check(const op::SumNormBackward& a);
void check(const op::MixNormBackward& a);
void check(const op::WeightedSumForward& a);
void check(const op::WeightedSumBackward& a);
void check(const op::NarrowLinearForward& a);
void check(const op::NarrowLinearBackward& a);
void check(const op::QkNormRotaryForward& a);
void check(const op::QkNormRotaryBackward& a);
void check(const op::OffsetKeysForward& a);
void check(const op::OffsetKeysBackward& a);
void check(const op::AttentionForward& a);
void check(const op::AttentionBackward& a);
void check(const op::ExcludeOwnValueForward& a);
void check(const op::ExcludeOwnValueBackward& a);
void check(const op::ComposeHeadsForward& a);
void check(const op::ComposeHeadsBackward& a);
void check(const op::CrossEntropy& a);
void check(const op::CrossEntropyPart& a);
void check(const op::CrossEntropyOfParts& a);
void check(const op::AdamwStep& a);
void check(const op::MuonMomentum& a);
void check(const op::NormuonScale& a);
void check(const op::MuonApply& a);
void check(const op::Quantize& a);
void check(const op::RenewScales& a);
void check(const op::ScaledMatmul& a);

// A step over the n elements of a parameter: states have to be f32 [n], grad_scale f32 [1].
void check_step(const char* op, std::initializer_list<Tensor> states, Tensor parameter, Tensor grad_scale);

// Rows of attention whose arguments were checked.
struct AttentionRows {
    int64_t sequences, queries, keys;  // the last two of each sequence
};
template <class Arguments>
AttentionRows attention_rows(const Arguments& a) {
    const int64_t keys = a.options.sequence_length, sequences = a.k.rows() / keys;
    return {sequences, sequences > 0 ? a.q.rows() / sequences : 0, keys};
}

// Query-key pairs that causality and the window leave to `queries` of all sequences, of one head and documents
// aside: the work of attention as flops() counts it. Each query counts as the mean of a sequence's, which is
// what chunks c and 2C − 1 − c of 2C come to.
int64_t visible_pairs(const AttentionOptions& options, int64_t queries);
int64_t visible_pairs(const ComposeHeadsOptions& options, int64_t queries);

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
