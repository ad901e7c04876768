#include "train/model/parts/rotary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numbers>
#include <set>

#include "data/columns/pairs.h"
#include "kernels/device/error.h"
#include "train/config/suggestion.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/attention.h"
#include "train/model/parts/paired_heads.h"
#include "train/model/parts/qk_norm.h"

namespace speedrun {

namespace {

// Distance in tokens from a query to its first key.
double reach_of(int64_t keys) {
    return static_cast<double>(keys - 1);
}

void check_pairs(const std::string& key, const RotaryConfig& rotary, int64_t pairs) {
    const int64_t turning = rotary.rotated_pairs(pairs);
    const double requested = rotary.fraction * static_cast<double>(pairs);
    if (turning < 1 || std::abs(requested - static_cast<double>(turning)) > 1e-6)
        throw_usage(
            "{}.fraction {} of {} pairs of a head's dimensions is {:.6g}, expected a whole number from 1 to {}: "
            "set N/{}, or \"rotary\": null for no rotation",
            key, rotary.fraction, pairs, requested, pairs, pairs);
    if (rotary.endpoint && turning < 2)
        throw_usage(
            "{}.endpoint: a single rotated pair has frequency 1, not 1/base: expected 2 pairs, "
            "fraction {:.6g}, or endpoint false",
            key, 2.0 / static_cast<double>(pairs));
}

// Refuses changes of the window without a ratio, and changes that make attention's scale negative.
void check_yarn(const std::string& key, const YarnConfig& yarn, const ModelParts& model) {
    std::set<std::string> names;
    for (const auto& [name, keys] : model.windows) names.insert(name);
    if (!names.count(yarn.window))
        throw_usage("{}.window: no window \"{}\" in model.windows{}", key, yarn.window,
                    suggestion(yarn.window, names));
    if (yarn.alpha >= yarn.beta)
        throw_usage("{}: alpha {} is not below beta {}: the ramp is from alpha to beta", key, yarn.alpha,
                    yarn.beta);
    const std::vector<int64_t> past = model.past_of(yarn.window);
    for (size_t i = 1; i < past.size(); ++i) {
        const int64_t before = past[i - 1], keys = past[i];
        if (std::min(before, keys) < 2)
            throw_usage(
                "{}: model.windows.{} changes from {} to {} keys: YaRN rescales by a ratio of windows of at least 2 "
                "keys; 0 (all keys) has no ratio",
                key, yarn.window, before, keys);
        const double growth = reach_of(keys) / reach_of(before);
        if (const double factor = yarn.log_scale * std::log(growth) + 1; factor <= 0)
            throw_usage(
                "{}: model.windows.{} shrinks from {} to {} keys, where log_scale {} would multiply attention's "
                "scale by {:.3g}: shrink less in one stage, or lower log_scale",
                key, yarn.window, before, keys, yarn.log_scale, factor);
    }
}

// The tables of a model. Layers with equal frequencies share them.
struct AngleTables {
    std::map<std::pair<std::vector<double>, bool>, RotaryTables> tables;
};

// paired: tables of two positions per token.
const RotaryTables& angle_tables(GraphWriter& w, const std::vector<double>& frequencies, bool paired) {
    const auto [at, is_new] = w.memo<AngleTables>().tables.try_emplace({frequencies, paired});
    if (!is_new) return at->second;
    const int64_t length = w.batch.sequence_length * (paired ? 2 : 1);
    std::vector<float> cos, sin;
    for (int64_t position = 0; position < length; ++position) {
        for (const double frequency : frequencies) {
            const double angle = static_cast<double>(position) * frequency;
            cos.push_back(static_cast<float>(std::cos(angle)));
            sin.push_back(static_cast<float>(std::sin(angle)));
        }
    }
    const std::vector<Extent> extents{{Dimension::positions, length},
                                      {Dimension::half_head, static_cast<int64_t>(frequencies.size())}};
    at->second = {.cos = w.model.graph.constant("rotary cos", extents, std::move(cos)),
                  .sin = w.model.graph.constant("rotary sin", extents, std::move(sin)),
                  .positions = w.input(paired ? paired_positions_column() : positions_column())};
    if (paired) w.input(paired_first_key_column());  // next to the positions, before other values
    return at->second;
}

}  // namespace

void YarnConfig::fields(FieldVisitor& v) {
    v.field("window", window,
            "name in model.windows of the window that rescales the frequencies when it changes");
    v.field("alpha", alpha,
            "rotations within the old window below which the frequency of a pair is multiplied by old/new",
            {0, 1e6});
    v.field("beta", beta,
            "rotations above which the frequency of a pair is unchanged; linear between alpha and beta",
            {0, 1e6});
    v.field(
        "log_scale", log_scale,
        "coefficient of the attention scale, which is multiplied by log_scale*ln(new/old) + 1 at each change",
        {0, 10});
}

void RotaryConfig::fields(FieldVisitor& v) {
    v.field("base", base, "base of the frequencies", {1, 1e9});
    v.field(
        "fraction", fraction,
        "share of a head's pairs of dimensions that are rotated, the fastest first; the others are unchanged",
        {0, 1});
    v.field(
        "endpoint", endpoint,
        "frequency of the i-th of n rotated pairs; true: base^(-i/(n-1)), the last 1/base; false: base^(-i/n)");
    v.optional("yarn", yarn,
               "rescale the frequencies when a window changes between stages (YaRN); null: off");
}

void RotaryPart::check(const AttentionScope& scope) const {
    const int64_t head_dim = scope.attention.qk_dim(scope.model_dim);
    if (head_dim % 2 != 0)
        throw_usage("{} needs an even head size, not {}{}: set qk_head_dim to {}", scope.key, head_dim,
                    scope.attention.qk_head_dim > 0
                        ? std::string()
                        : fmt::format(" (= model_dim {} / heads {})", scope.model_dim, scope.attention.heads),
                    head_dim + 1);
    check_pairs(scope.key, *this, scope.head_pairs());
    if (yarn) check_yarn(scope.key + ".yarn", *yarn, scope.model);
}

void RotaryPart::build(AttentionLayer& layer) const {
    layer.at(AttentionSlot::rotate, [this, &a = layer] {
        write(a, this);
        a.scale *= yarn_scale(*this, a.model.past_of(followed_window()));
    });
}

void RotaryPart::write(AttentionLayer& a, const RotaryPart* rotary) {
    const int64_t C = a.qk_width().size, H = a.heads.size, D = a.qk_dim();
    const RotaryOptions options{.num_heads = H,
                                .head_dim = D,
                                .normalize = a.config.parts.find<QkNormPart>() != nullptr,
                                .rotate = rotary != nullptr,
                                .epsilon = static_cast<float>(a.model.norms.epsilon)};
    // The two rows of a pair have to be contiguous.
    const bool paired = a.config.parts.find<PairedHeadsPart>() != nullptr;
    const auto rows = [&](const char* name, int64_t first) {
        return paired ? a.w.compute_value(name, a.w.extents.tokens(), a.qk_width())
                      : a.w.view(a.qkv, name, first, C);
    };
    const ValueId q = rows("q", 0), k = rows("k", C);
    const ValueId rstd =
        options.normalize ? a.w.f32("qk_rstd", {a.w.extents.tokens(), {a.heads.dimension, 2 * H}}) : kNoValue;
    RotaryTables angles;
    if (rotary) {
        const std::vector<int64_t> past = a.model.past_of(rotary->followed_window());
        angles = angle_tables(a.w, rotary_frequencies(*rotary, D / 2, past), paired);
        angles.described = described_rotary(*rotary, D / 2, past);
    }
    a.w.add<QkNormRotary>(
        {.q = q, .k = k, .rstd = rstd, .projected_q = a.q, .projected_k = a.k, .tables = angles}, options,
        paired);
    a.q = q;
    a.k = k;
}

std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t pairs,
                                       const std::vector<int64_t>& windows) {
    const int64_t turning = config.rotated_pairs(pairs), last = config.endpoint ? turning - 1 : turning;
    std::vector<double> frequencies(static_cast<size_t>(pairs), 0.0);
    for (int64_t i = 0; i < turning; ++i)
        frequencies[static_cast<size_t>(i)] =
            std::pow(config.base, -static_cast<double>(i) / static_cast<double>(last));
    for (size_t change = 1; config.yarn && change < windows.size(); ++change) {
        const double reach = reach_of(windows[change - 1]), ratio = reach / reach_of(windows[change]);
        for (double& frequency : frequencies) {
            const double rotations = reach * frequency / (2 * std::numbers::pi);
            const double kept = std::clamp(
                (rotations - config.yarn->alpha) / (config.yarn->beta - config.yarn->alpha), 0.0, 1.0);
            frequency *= ratio + kept * (1 - ratio);
        }
    }
    return frequencies;
}

double yarn_scale(const RotaryConfig& config, const std::vector<int64_t>& windows) {
    double scale = 1;
    for (size_t change = 1; config.yarn && change < windows.size(); ++change)
        scale *=
            config.yarn->log_scale * std::log(reach_of(windows[change]) / reach_of(windows[change - 1])) + 1;
    return scale;
}

std::string described_rotary(const RotaryConfig& config, int64_t pairs, const std::vector<int64_t>& windows) {
    std::string text;
    if (const int64_t turning = config.rotated_pairs(pairs); turning < pairs)
        text += fmt::format(", {} of {} pairs", turning, pairs);
    if (config.endpoint) text += fmt::format(", to 1/{:g}", config.base);
    if (config.yarn && windows.size() > 1) text += fmt::format(", YaRN {}", fmt::join(windows, " -> "));
    return text;
}

}  // namespace speedrun
