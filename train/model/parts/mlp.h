// MLP of a layer: x + down·activation(up·n), or x + down·(silu(gate·n) · up·n), where n = norm(x).
#pragma once

#include <optional>
#include <vector>

#include "train/config/init_config.h"
#include "train/model/parts/fp8.h"
#include "train/model/parts/sum.h"

namespace speedrun {

struct MlpLayer;  // train/model/layers.h

struct MlpConfig {
    int64_t ratio = 4;
    Activation activation = Activation::relu_squared;
    bool swiglu = false;  // Shazeer 2020; unused then: activation
    bool bias = false;
    InitConfig init{.type = InitKind::uniform, .value = 0.5, .by_fan_in = true};
    InitConfig down_init = {};
    std::optional<LinearFp8Config> up_fp8 = {}, down_fp8 = {};
    std::vector<SumTerm> after = {};  // empty: stream + output

    void fields(FieldVisitor& v);
    // Throws a usage error if FP8 matmuls do not fit the width or a bias. check_sums covers `after`.
    void check(const std::string& key, int64_t model_dim) const;
    bool uses_fp8() const { return up_fp8 || down_fp8; }
    // True if the scale of the normed input is its amax.
    bool scales_by_amax() const { return up_fp8 && up_fp8->x.by == Fp8ScaleBy::current; }
    // Returns the number of matrices, each of ratio·width² weights.
    int64_t num_matrices() const { return swiglu ? 3 : 2; }
    // Returns the word of an activation with slope 0 at 0, else null.
    const char* flat_activation() const {
        if (swiglu) return "swiglu";
        return activation == Activation::relu_squared ? word_of(activation) : nullptr;
    }
    void build(MlpLayer& layer) const;
};

}  // namespace speedrun
