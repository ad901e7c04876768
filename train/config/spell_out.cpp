// Presets as lists of parts.
#include <cmath>

#include "train/config/config.h"
#include "train/model/parts/qk_norm.h"
#include "train/model/parts/rotary.h"

namespace speedrun {

namespace {

// GPT-2: deviation 0.02, residual projections divided by √(2L) (Radford et al. 2019, section 2.3). Modern:
// half the deviation of 1/√fan-in, projections zero, embeddings of deviation 1 because a norm follows.
class Speller {
  public:
    explicit Speller(const ModelConfig& model) : model_(model), gpt2_(model.preset == Family::gpt2) {}

    ModelParts spell() {
        add_tables();
        parts_.norms = {.type = model_.norm,
                        .gain = model_.norm_parameters,
                        .bias = model_.norm_parameters && model_.biases};
        if (model_.norm_embedding) parts_.input.push_back({.type = StreamPart::norm});
        add_layers();
        parts_.output.push_back({.type = StreamPart::norm});
        parts_.head = {.tied_to = model_.tied_head ? "embed" : "",
                       .softcap = model_.logit_softcap,
                       .init = projection()};
        return std::move(parts_);
    }

  private:
    static InitConfig normal(double deviation) { return {.type = InitKind::normal, .value = deviation}; }
    InitConfig inner() const {
        if (gpt2_) return normal(0.02);
        return {.type = InitKind::uniform, .value = 0.5, .by_fan_in = true};
    }
    InitConfig projection() const {
        if (model_.zero_init_projections) return {};
        return gpt2_ ? normal(0.02 / std::sqrt(2.0 * static_cast<double>(model_.num_layers))) : inner();
    }

    static std::string value_table(int64_t index) { return fmt::format("value_embed.{}", index); }
    void add_table(const std::string& name, const TableConfig& table, bool is_input = true) {
        parts_.tables.emplace_back(name, table);
        if (is_input) parts_.input.push_back({.type = StreamPart::table, .table = name});
    }
    void add_tables() {
        add_table("embed", {.init = normal(model_.norm_embedding ? 1.0 : 0.02)});
        if (model_.position == PositionKind::learned)
            add_table("position", {.rows = TableRows::positions, .init = normal(0.02)});
        // Zero: the model begins without n-grams, and rows that no text has reached add nothing.
        if (model_.max_ngram >= 2)
            add_table(
                "ngram_embed",
                {.rows = TableRows::ngrams, .max_ngram = model_.max_ngram, .num_rows = model_.ngram_rows});
        for (int64_t i = 0; i < model_.value_embeddings; ++i)
            add_table(value_table(i), {.init = normal(1)}, false);
    }

    static constexpr const char* kWindow = "window";  // its name, where it needs one
    void add_layers() {
        const bool by_stage = !model_.window.is_number();
        AttentionConfig attention{.heads = model_.num_heads,
                                  .bias = model_.biases,
                                  .scale = model_.attention_scale,
                                  .window = by_stage ? kWindow : std::to_string(int64_t{model_.window}),
                                  .init = inner(),
                                  .out_init = projection()};
        if (by_stage) parts_.windows = {{kWindow, model_.window}};
        if (!model_.qk_norm) attention.parts.remove<QkNormPart>();
        attention.parts.remove<RotaryPart>();
        if (model_.position == PositionKind::rotary)
            attention.parts.set(RotaryPart({.base = model_.rotary_base}));
        LayerConfig each{.attention = attention,
                         .mlp = MlpConfig{.ratio = model_.mlp_ratio,
                                          .activation = model_.activation,
                                          .bias = model_.biases,
                                          .init = inner(),
                                          .down_init = projection()}};
        if (model_.mix_first_embedding)
            each.enter = {
                {{{.of = "stream", .scale = 1, .name = "mix"}, {.of = "first", .scale = 0, .name = "mix"}}}};
        parts_.layers = {.count = model_.num_layers, .each = each};
        const int64_t first = model_.num_layers - model_.value_embeddings;
        for (int64_t i = 0; i < model_.value_embeddings; ++i) {
            LayerConfig layer = each;
            layer.attention->value_table = value_table(i);
            parts_.layers.at.push_back({std::to_string(first + i), layer});
        }
    }

    const ModelConfig& model_;
    const bool gpt2_;
    ModelParts parts_;
};

}  // namespace

ModelParts ModelConfig::spelled_out() const {
    return preset == Family::none ? parts : Speller(*this).spell();
}

}  // namespace speedrun
