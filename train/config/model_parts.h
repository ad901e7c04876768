// A model spelled out in parts: tables, what enters the first layer, the layers one by one, what follows them,
// head and loss. `model` of a config says these under "preset": "none"; a preset is a way to say them in a few
// switches (spell_out.h). The model is built from the parts and from nothing else.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/ngrams.h"
#include "kernels/ops/combine.h"
#include "kernels/ops/loss.h"
#include "train/config/choices.h"
#include "train/fields/field_visitor.h"
#include "train/config/fp8.h"

namespace speedrun {

// How the values of a matrix start.
struct InitConfig {
    InitKind type = InitKind::constant;
    double value = 0;        // the constant, or the standard deviation
    bool by_fan_in = false;  // divided by the root of the number of inputs
    void fields(FieldVisitor& v);
};

// A matrix of which a row belongs to each token, position or n-gram; its parameter is NAME.weight.
struct TableConfig {
    TableRows rows = TableRows::tokens;
    InitConfig init = {};
    int64_t max_ngram = 2, num_rows = 8192;  // of n-grams
    NgramHash hash = NgramHash::mixed;
    int64_t sign_rows = 0;
    TableExchange exchange = TableExchange::whole;
    void fields(FieldVisitor& v);
    void validate(const std::string& key) const;        // throws a usage error
    void validate_tied(const std::string& name) const;  // … if the head cannot be tied to it
};

struct NormConfig {
    NormKind type = NormKind::rmsnorm;
    bool gain = false, bias = false;  // learned
    double epsilon = 1e-5;            // of QK-norms too
    void fields(FieldVisitor& v);
};

// Numbers that are computed for each token from the first columns of its row, between 0 and 1; or by a network, as it gives
// them.
struct GateConfig {
    static constexpr double kStart = 0.5;

    int64_t columns = 12;
    std::string network = {};
    double start = kStart;  // of a network
    void fields(FieldVisitor& v);
};

// A small network that computes numbers for each token: out = (W2 gelu(W1 u) + b)·scale, with W2 zero at the start. Which numbers,
// those who name it say (network_numbers.h).
struct NetworkConfig {
    std::string input = "first";  // u (stream_place)
    int64_t hidden = 64;
    InitConfig init{.type = InitKind::uniform, .value = 0.5773502691896258, .by_fan_in = true};  // ±1/√width
    double scale = 0.1;
    std::string learned_scale = {};  // name of the number that it then is; networks may share it
    void fields(FieldVisitor& v);
};

// One part of what happens to the rows before the first layer, or after the last.
struct StreamPartConfig {
    StreamPart type = StreamPart::norm;
    std::string table = {};    // table, inject, add: whose rows are added
    std::string of = {};       // add: a place of the stream (stream_place), where no table is named
    std::string network = {};  // add: that computes the factor
    int64_t layer = 0;         // backout: whose output is taken away
    double start = 0;          // smear, inject, backout, add: the learned factor
    int64_t columns = 12;      // smear: that its gate reads
    void fields(FieldVisitor& v);
};

// Peng et al. 2023 (YaRN), where a window of attention grows from stage to stage: frequencies are rescaled at each change of
// this window (rotary_frequencies.h), in the layers that say so, whatever their own window is.
struct YarnConfig {
    std::string window = {};  // of ModelParts::windows
    double alpha = 1;         // pairs with fewer rotations within the old window are slowed in full
    double beta = 32;         // those with more are not
    double log_scale = 0.2;   // attention's scale · (log_scale·ln(new/old) + 1)
    void fields(FieldVisitor& v);
};

struct RotaryConfig {
    double base = 10000;
    double fraction = 1;    // of a head's pairs of dimensions: the first, which turn
    bool endpoint = false;  // the last frequency is 1/base
    std::optional<YarnConfig> yarn = {};
    void fields(FieldVisitor& v);
    // How many of a head's pairs turn; the nearest number where the fraction gives none.
    int64_t turning_pairs(int64_t pairs) const { return std::llround(fraction * static_cast<double>(pairs)); }
};

// v + gate·row instead of a·v + b·row: of each head 2·sigmoid of the first columns of what attention reads and of the row, or of
// each half of the heads what a network computes.
struct ValueGateConfig {
    static constexpr double kStart = 1;

    int64_t columns = 6;  // of each
    std::string network = {};
    double start = kStart;  // of a network
    void fields(FieldVisitor& v);
};

// A map of attention that is mixed of all heads' maps for each token is applied to the values of each head, and added to its
// output by learned factors (op::ComposeHeadsForward).
struct ComposeHeadsConfig {
    int64_t keys = 112;        // last ones of the document that the maps are of
    double maps_start = 1;     // w1, each head's weight in the mix before their norm
    double output_start = 0;   // w2, what each head's output gets of it
    std::string network = {};  // that computes both
    void fields(FieldVisitor& v);
};

// What lies along a token's own value is taken from each head's output, by the share tanh(a) of a learned a.
struct ExcludeOwnValueConfig {
    double start = 0;          // a, of each head
    std::string network = {};  // that computes a
    void fields(FieldVisitor& v);
};

// A value of another place of the model, times a learned factor.
struct InjectedConfig {
    static constexpr const char *kFirst = "first", *kStream = "stream";

    std::string table =
        {};  // whose rows; empty: a place of the stream (stream_place), or, kStream, the stream as it is
    std::string of = kFirst;
    double start = 0;                // the factor
    std::string network = {};        // that computes it
    std::string value_name() const;  // in the names of parameters: "after_3"
    std::string factor_name() const { return value_name() + "_scale"; }
    bool is_stream() const { return table.empty() && of == kStream; }
    void fields(FieldVisitor& v);
};

// What an `add` of model.output adds.
InjectedConfig added_by(const StreamPartConfig& part);

// How the stream goes on behind a sublayer: x ← r·x + p·sublayer + Σ h·injected, all factors learned.
struct JoinConfig {
    double stream = 1, output = 1;  // r, p at the start
    std::string network = {};       // that computes both
    std::vector<InjectedConfig> inject = {};
    void fields(FieldVisitor& v);
    // Throws a usage error for what does not fit, whatever tables there are.
    void validate(const std::string& key) const;
};

// x + O·attention(norm(x)), or of another place of the stream.
struct AttentionConfig {
    static constexpr double kValueStart = 0.5;

    int64_t heads = 4;
    std::string reads = {};  // stream_place; empty: x
    bool bias = false;
    bool qk_norm = true;
    std::optional<RotaryConfig> rotary = RotaryConfig{};
    bool key_offset = false;
    bool paired = false;
    double scale = 0;
    std::string window = "0";
    std::string value_table = {};
    double value_start = kValueStart;
    std::optional<ValueGateConfig> value_gate = {};
    bool value_scale = false;
    std::optional<ComposeHeadsConfig> compose_heads = {};
    std::vector<InjectedConfig> add_to_values = {};
    std::optional<ExcludeOwnValueConfig> exclude_own_value = {};
    std::optional<GateConfig> gate = {};
    InitConfig init{.type = InitKind::uniform, .value = 0.5, .by_fan_in = true};  // queries, keys, values
    InitConfig out_init = {};
    double out_scale = 0;
    std::optional<JoinConfig> join = {};
    void fields(FieldVisitor& v);
    // Throws a usage error for factors of values, rows and outputs that do not fit each other.
    void check_factors(const std::string& key, int64_t model_dim) const;
};

// x + down·activation(up·norm(x)).
struct MlpConfig {
    int64_t ratio = 4;
    Activation activation = Activation::relu_squared;
    bool bias = false;
    InitConfig init{.type = InitKind::uniform, .value = 0.5, .by_fan_in = true};
    InitConfig down_init = {};
    std::optional<LinearFp8Config> up_fp8 = {}, down_fp8 = {};
    std::optional<JoinConfig> join = {};
    void fields(FieldVisitor& v);
};

// x ← a·x + b·x0, x0 being what the input gave; or a·x + Σ h·added.
struct MixConfig {
    double start = 1;          // a; b starts at 0
    std::string network = {};  // that computes a
    std::vector<InjectedConfig> add = {};
    void fields(FieldVisitor& v);
};

struct LayerConfig {
    std::optional<MixConfig> mix = {};
    std::optional<AttentionConfig> attention = AttentionConfig{};
    std::optional<MlpConfig> mlp = MlpConfig{};
    bool empty() const { return !mix && !attention && !mlp; }
    std::vector<const InjectedConfig*> injected() const;  // by mix, attention and MLP, in order
    void fields(FieldVisitor& v);
};

// Single layers that are not like the others: numbers, such as "4,11" or "0-2", and what they are.
struct LayersAt {
    std::string numbers = {};
    std::optional<LayerConfig> layer = {};  // none: these layers are left out
};

struct LayersConfig {
    int64_t count = 4;
    LayerConfig each;
    std::vector<LayersAt> at = {};
    void fields(FieldVisitor& v);
    // All of them in order; nothing for those that are left out. Throws a usage error for a number that is no
    // layer's or is named twice.
    std::vector<std::optional<LayerConfig>> resolved() const;
};

// What layer `from` gave is added to what enters layer `to`, times the sigmoid of a learned number, and times another that a
// network computes.
struct SkipConfig {
    int64_t from = 0, to = 0;
    double start = -1.5;
    std::string network = {};
    double network_start = 1;
    void fields(FieldVisitor& v);
};

struct HeadConfig {
    std::string tied_to = {};   // a table; empty: a matrix of its own
    int64_t untied_after = -1;  // the stage behind which it has one all the same; −1: none
    double softcap = 15;
    SoftcapFunction softcap_function = SoftcapFunction::tanh;
    double logit_shift = 0, logit_scale = 0;
    InitConfig init = {};
    std::optional<HeadFp8Config> fp8 = {};
    // tanh: c·tanh((z + shift)/scale), sigmoid: c·σ((z + shift)/scale), less its half, which changes no probability. With
    // scale 0 the slope at its steepest is 1: a scale of c, and of c/4.
    Softcap cap() const {
        const bool sigmoid = softcap_function == SoftcapFunction::sigmoid;
        return {.cap = static_cast<float>(sigmoid ? softcap / 2 : softcap),
                .shift = static_cast<float>(logit_shift),
                .scale = static_cast<float>(sigmoid ? 2 * logit_scale : logit_scale)};
    }
    std::string cap_text() const;  // as it was asked for, for people; of no cap: empty
    void fields(FieldVisitor& v);

    bool comes_apart() const { return untied_after >= 0; }
    std::optional<bool> apart = {};  // of one stage (ModelConfig::in_stage): has it?
    bool tied() const { return !tied_to.empty() && !apart.value_or(false); }
};

struct LossConfig {
    bool padding = false;
    std::vector<Scheduled<double>> weights{1.0};  // of the token behind each, of the one after that, …
    Scheduled<double> prefix_weight = 0;          // of the longest token that the next one begins with
    double gradient_divisor = 0;  // of the sum of a step's losses; 0: the number of its targets
    int64_t num_tokens() const { return static_cast<int64_t>(weights.size()); }  // to come
    bool counts_prefixes() const;                                                // in any stage
    int64_t num_targets() const { return num_tokens() + (counts_prefixes() ? 1 : 0); }
    LossConfig in_stage(int64_t stage) const;
    // The weights of all targets at this point of a run; the prefix's, where it counts, is the last. For a config of one stage.
    std::vector<float> numbers_at(const StagePoint& point) const;
    // Gradients of a step are those of this factor times the sum of its losses, over all ranks and microbatches.
    float gradient_scale(int64_t step_targets) const {
        return static_cast<float>(
            1.0 / (gradient_divisor > 0 ? gradient_divisor : static_cast<double>(step_targets)));
    }
    // The next token alone, in every stage.
    bool is_plain() const { return weights == std::vector<Scheduled<double>>{1.0} && !counts_prefixes(); }
    void fields(FieldVisitor& v);
};

struct ModelParts {
    std::vector<std::pair<std::string, TableConfig>> tables;  // in order of declaration
    std::vector<std::pair<std::string, Scheduled<int64_t>>> windows;
    std::vector<std::pair<std::string, NetworkConfig>> networks;
    NormConfig norms;
    std::vector<StreamPartConfig> input;
    LayersConfig layers;
    std::vector<SkipConfig> skips;
    std::vector<StreamPartConfig> output;
    HeadConfig head;
    LossConfig loss;

    void fields(FieldVisitor& v);
    // Throws a usage error, with key and values, for parts that do not fit each other or the width.
    void validate(int64_t model_dim) const;

    const TableConfig* find_table(const std::string& name) const;  // null: there is none
    // Of one stage: keys that a query of this attention sees at most; 0: all. Throws a usage error for an unknown name.
    int64_t window_of(const AttentionConfig& attention, int64_t layer) const;
    // What a window that YaRN follows was in the stages up to this one (ModelConfig::in_stage), changes alone; empty
    // for others.
    std::vector<int64_t> past_of(const std::string& window) const;
    std::vector<std::pair<std::string, std::vector<int64_t>>> window_past = {};
    // Which n-grams are embedded; of 0 tokens where none are.
    NgramTable ngram_table() const;
    bool has_positions() const;  // a table of them, which says how long a row can be
    int64_t num_layers() const;  // those that are not left out
    bool uses_fp8() const;       // some product of training does
};

}  // namespace speedrun
