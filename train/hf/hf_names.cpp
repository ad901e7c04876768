#include "train/hf/hf_names.h"

#include <array>
#include <string_view>
#include <utility>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOfBlock{{{"attn_norm", "ln_1"},
                                                                                 {"attn.qkv", "attn.c_attn"},
                                                                                 {"attn.out", "attn.c_proj"},
                                                                                 {"mlp_norm", "ln_2"},
                                                                                 {"mlp.up", "mlp.c_fc"},
                                                                                 {"mlp.down", "mlp.c_proj"}}};

bool is_vocabulary(const Parameter& p) {
    return p.name == "embed.weight" || p.name == "head.weight";
}

}  // namespace

HfName hf_name(const Parameter& p) {
    if (p.name == "embed.weight") return {"transformer.wte.weight"};
    if (p.name == "position.weight") return {"transformer.wpe.weight"};
    if (p.name == "head.weight") return {"lm_head.weight"};
    if (p.name == "final_norm.gain") return {"transformer.ln_f.weight"};
    if (p.name == "final_norm.bias") return {"transformer.ln_f.bias"};
    const std::string_view name = p.name;
    const size_t index = std::string_view("blocks.").size(), dot = name.find('.', index),
                 last = name.rfind('.');
    if (name.starts_with("blocks.") && dot < last) {
        const std::string_view part = name.substr(dot + 1, last - dot - 1), kind = name.substr(last + 1);
        for (const auto& [ours, theirs] : kOfBlock) {
            if (part != ours) continue;
            return {fmt::format("transformer.h.{}.{}.{}", name.substr(index, dot - index), theirs,
                                kind == "bias" ? "bias" : "weight"),
                    p.is_matrix()};
        }
    }
    throw_internal("{} is not a parameter of GPT-2", p.name);
}

std::vector<int64_t> hf_shape(const Parameter& p, const ModelConfig& model) {
    std::vector<int64_t> shape = p.shape;
    if (is_vocabulary(p)) shape[0] = model.vocab_size;
    if (hf_name(p).transposed) std::swap(shape[0], shape[1]);
    return shape;
}

bool is_hf_mask(const std::string& name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace speedrun
