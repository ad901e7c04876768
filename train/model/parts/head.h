// The head: logits = softcap(W x), with W a matrix of its own or a table of tokens, and the loss of each token.
#pragma once

#include <optional>
#include <string>

#include "kernels/ops/loss.h"
#include "train/config/init_config.h"
#include "train/model/parts/fp8.h"

namespace speedrun {

struct HeadLayer;  // train/model/layers.h

// Function that bounds logits, see HeadConfig::cap().
enum class SoftcapFunction : uint8_t { tanh, sigmoid };
template <>
inline constexpr Word<SoftcapFunction> kWords<SoftcapFunction>[] = {{"tanh", SoftcapFunction::tanh},
                                                                    {"sigmoid", SoftcapFunction::sigmoid}};

struct HeadConfig {
    std::string tied_to = {};   // name of a table; empty: a matrix of its own
    int64_t untied_after = -1;  // last stage with a tied head; -1: tied in all stages
    double softcap = 15;
    SoftcapFunction softcap_function = SoftcapFunction::tanh;
    double logit_shift = 0, logit_scale = 0;
    InitConfig init = {};
    std::optional<HeadFp8Config> fp8 = {};

    void fields(FieldVisitor& v);
    // Throws a usage error for options without the one that they modify, and for a width that FP8 matmuls refuse.
    void check(int64_t model_dim) const;
    // Returns c·tanh((z + shift)/scale), or c·σ((z + shift)/scale) less its half, which changes no probability. Scale 0: the
    // steepest slope is 1, by a scale of c for tanh and of c/4 for σ.
    Softcap cap() const;
    std::string cap_text() const;  // the cap as configured; empty: none
    void build(HeadLayer& layer) const;

    bool unties() const { return untied_after >= 0; }
    std::optional<bool> apart = {};  // in this stage (ModelConfig::in_stage); true: no longer tied
    bool tied() const { return !tied_to.empty() && !apart.value_or(false); }
};

}  // namespace speedrun
