#include "train/model/parts/head.h"

#include <cmath>

#include "kernels/device/error.h"
#include "train/model/layers.h"
#include "train/model/nodes/head.h"

namespace speedrun {

void HeadConfig::fields(FieldVisitor& v) {
    v.field("tied_to", tied_to, "table of tokens used as the matrix of the head; empty: a matrix of its own");
    v.field(
        "untied_after", untied_after,
        "last stage of the schedule, counted from 0, with a tied head. Later stages have a matrix (head.weight) that starts "
        "as a copy of the table with a copy of its optimizer's state; -1: tied in all stages",
        {-1, 1e6});
    v.field("softcap", softcap, "c > 0: bound of the logits, by default c*tanh(logits/c); 0: off", {0, 1e6});
    v.choice(
        "softcap_function", softcap_function,
        "function of softcap; tanh: c*tanh((logits + logit_shift)/logit_scale); sigmoid: c*sigmoid((logits + "
        "logit_shift)/logit_scale)");
    v.field("logit_shift", logit_shift, "shift of the logits before softcap", {-1e6, 1e6});
    v.field("logit_scale", logit_scale,
            "divisor of the shifted logits; 0: c for tanh, c/4 for sigmoid, with largest slope 1", {0, 1e6});
    init_field(v, "init", init, "initial matrix of an untied head");
    v.optional(
        "fp8", fp8,
        "FP8 matmuls in training: x and the matrix in e4m3, gradients of logits in e5m2; validation: compute dtype; null: "
        "no");
}

void HeadConfig::check(int64_t model_dim) const {
    if (fp8) expect_fp8_width("model.head.fp8", model_dim);
    if (unties() && tied_to.empty())
        throw_usage("model.head.untied_after {}: the head is not tied to a table (model.head.tied_to)",
                    untied_after);
    if (softcap > 0) return;
    if (logit_shift != 0 || logit_scale != 0 || softcap_function != HeadConfig{}.softcap_function)
        throw_usage(
            "model.head: softcap is 0, so softcap_function {}, logit_shift {} and logit_scale {} have no effect: "
            "set softcap, or remove them",
            word_of(softcap_function), logit_shift, logit_scale);
}

Softcap HeadConfig::cap() const {
    const bool sigmoid = softcap_function == SoftcapFunction::sigmoid;
    return {.cap = static_cast<float>(sigmoid ? softcap / 2 : softcap),
            .shift = static_cast<float>(logit_shift),
            .scale = static_cast<float>(sigmoid ? 2 * logit_scale : logit_scale)};
}

std::string HeadConfig::cap_text() const {
    if (softcap <= 0) return "";
    if (softcap_function == SoftcapFunction::tanh && logit_shift == 0 && cap().slope() == 1)
        return fmt::format("softcap {:g}", softcap);
    const std::string z =
        logit_shift == 0 ? "z"
                         : fmt::format("(z {} {:g})", logit_shift < 0 ? '-' : '+', std::abs(logit_shift));
    const double steepest = softcap_function == SoftcapFunction::tanh ? softcap : softcap / 4;
    return fmt::format("softcap {:g} x {}({}/{:g})", softcap, word_of(softcap_function), z,
                       logit_scale > 0 ? logit_scale : steepest);
}

void HeadConfig::build(HeadLayer& layer) const {
    GraphWriter& w = layer.w;
    ModelGraph& model = w.model;
    ParameterId weight = layer.table;
    if (tied_to.empty() || unties()) {
        const ParameterId own = w.parameter(
            "head.weight", {w.extents.vocabulary(), w.extents.width()},
            {w.rule(init, layer.config.model_dim), "logits = W x; rows after the vocabulary are padding"});
        if (unties()) model.table.set_copy_of(own, weight);
        (tied() ? model.inactive : weight) = own;
    }
    model.losses = model.graph.value("losses", Element::f32, {w.extents.tokens()}, Holder::model);
    const int64_t padded = layer.config.padded_vocab_size();
    model.head = &w.add<Head>({.losses = model.losses,
                               .x = layer.x,
                               .targets = model.find_input("targets")->value,
                               .weight = weight,
                               .loss_weights = model.loss_weights},
                              HeadOptions{.num_tokens = w.extents.tokens().size,
                                          .logit_rows = layer.logit_rows,
                                          .vocab_size = layer.loss.padding ? padded : layer.config.vocab_size,
                                          .padded_vocab_size = padded,
                                          .softcap = cap(),
                                          .softcap_text = cap_text(),
                                          .prefixes = layer.loss.counts_prefixes(),
                                          .part = w.batch.tensor,
                                          .fp8 = fp8,
                                          .width = layer.config.model_dim});
}

}  // namespace speedrun
