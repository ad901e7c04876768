// The config of one stage of the schedule.
#include <algorithm>
#include <set>

#include "kernels/device/error.h"
#include "train/config/config.h"
#include "train/config/suggestion.h"

namespace speedrun {

namespace {

template <class T>
void set_stage(Scheduled<T>& value, int64_t stage) {
    value = Scheduled<T>({value.in(stage)});
}

// Returns the names of windows that parts of attention follow.
std::set<std::string> followed_windows(const LayersConfig& layers) {
    std::set<std::string> names;
    const auto note = [&](const LayerConfig& layer) {
        if (!layer.attention) return;
        for (const auto& [key, part] : layer.attention->parts.all())
            if (const std::string window = part->followed_window(); !window.empty()) names.insert(window);
    };
    note(layers.each);
    for (const LayersAt& at : layers.at)
        if (at.layer) note(*at.layer);
    return names;
}

// Returns the sizes of a window in the stages up to this one, without repeats.
std::vector<int64_t> past_of(const std::vector<Scheduled<int64_t>::Entry>& entries, int64_t stage) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i <= stage; ++i) {
        const int64_t size = entries[entries.size() == 1 ? 0 : static_cast<size_t>(i)].from;
        if (sizes.empty() || sizes.back() != size) sizes.push_back(size);
    }
    return sizes;
}

template <class T>
void require_stages(const std::string& key, const Scheduled<T>& value, const ScheduleConfig& schedule) {
    if (value.fits(schedule.num_stages())) return;
    if (schedule.stages.empty()) {
        throw_usage(
            "{} has {} entries, one for each stage, but schedule.stages is empty: set the "
            "step at the end of each stage there",
            key, value.entries().size());
    }
    throw_usage("{} has {} entries, schedule.stages has {}: one for each stage, or a number for all", key,
                value.entries().size(), schedule.stages.size());
}

}  // namespace

ModelConfig ModelConfig::in_stage(int64_t stage) const {
    ModelConfig model = *this;
    // A model of one stage already has its window_past.
    if (const auto followed = followed_windows(parts.layers); model.parts.window_past.empty())
        for (const auto& [name, keys] : parts.windows)
            if (followed.count(name))
                model.parts.window_past.emplace_back(name, past_of(keys.entries(), stage));
    for (auto& [name, keys] : model.parts.windows) set_stage(keys, stage);
    model.parts.loss = model.parts.loss.in_stage(stage);
    HeadConfig& head = model.parts.head;
    if (!head.apart) head.apart = head.unties() && stage > head.untied_after;
    return model;
}

Config Config::in_stage(int64_t stage) const {
    Config config = *this;
    config.model = model.in_stage(stage);
    for (Scheduled<int64_t>* size : {&config.data.max_document_tokens, &config.batch.sequence_length,
                                     &config.batch.microbatch_tokens, &config.batch.tokens_per_step})
        set_stage(*size, stage);
    for (OptimizerGroupConfig& group : config.optimizers.groups) set_stage(group.muon.momentum, stage);
    set_stage(config.schedule.lr_factor, stage);
    config.schedule.stages.clear();
    return config;
}

Config Config::in_chosen_stage(const std::optional<int64_t>& stage) const {
    if (stage && (*stage < 0 || *stage >= schedule.num_stages())) {
        throw_usage("--stage {}: schedule.stages has {}, counted from 0", *stage, schedule.num_stages());
    }
    return stage ? in_stage(*stage) : in_last_stage();
}

Config Config::in_validation() const {
    Config config = in_last_stage();
    config.model.parts.loss.weights = LossConfig{}.weights;
    config.model.parts.loss.prefix_weight = LossConfig{}.prefix_weight;
    for (const auto& [name, keys] : eval.windows) {
        for (auto& [known, window] : config.model.parts.windows)
            if (known == name) window = keys;
    }
    const int64_t length = eval.sequence_length;
    if (length == 0 || length == config.batch.sequence_length) return config;
    config.batch.microbatch_tokens = std::max<int64_t>(1, config.batch.microbatch_tokens / length) * length;
    config.batch.tokens_per_step = config.batch.microbatch_tokens;
    config.batch.sequence_length = length;
    config.data.max_document_tokens = 0;
    return config;
}

int64_t Config::longest_sequence() const {
    int64_t longest = eval.sequence_length;
    for (const auto& entry : batch.sequence_length.entries()) longest = std::max(longest, entry.from);
    return longest;
}

int64_t Config::tokens_before(int64_t step) const {
    int64_t tokens = 0;
    for (int64_t stage = 0; stage <= schedule.stage_of(step); ++stage) {
        const int64_t first = schedule.first_step(stage);
        const int64_t end = stage < schedule.stage_of(step) ? schedule.end_step(stage) : step;
        tokens += (end - first) * batch.tokens_per_step.in(stage).from;
    }
    return tokens;
}

void Config::validate_scheduled() const {
    const auto check = [this](const std::string& key, const auto& value) {
        require_stages(key, value, schedule);
    };
    for (const auto& [name, keys] : model.parts.windows) check("model.windows." + name, keys);
    for (size_t i = 0; i < model.parts.loss.weights.size(); ++i)
        check(fmt::format("model.loss.weights[{}]", i), model.parts.loss.weights[i]);
    check("model.loss.prefix_weight", model.parts.loss.prefix_weight);
    if (const int64_t last = model.parts.head.untied_after; last >= 0 && last + 1 >= schedule.num_stages())
        throw_usage(
            "model.head.untied_after {}: no stage follows it, schedule.stages has {}, counted from 0: name an earlier one, "
            "or leave the head tied",
            last, schedule.num_stages());
    check("data.max_document_tokens", data.max_document_tokens);
    check("batch.sequence_length", batch.sequence_length);
    check("batch.microbatch_tokens", batch.microbatch_tokens);
    check("batch.tokens_per_step", batch.tokens_per_step);
    check("schedule.lr_factor", schedule.lr_factor);
    for (size_t i = 0; i < optimizers.groups.size(); ++i)
        check(fmt::format("optimizers.groups[{}].momentum", i), optimizers.groups[i].muon.momentum);
    double tokens = 0;
    for (int64_t stage = 0; stage < schedule.num_stages(); ++stage)
        tokens += static_cast<double>(schedule.end_step(stage) - schedule.first_step(stage)) *
                  static_cast<double>(batch.tokens_per_step.in(stage).from);
    if (tokens > kMaxTokens)
        throw_usage(
            "{} steps would be {:.1e} tokens, at most {:.0e} are counted: lower schedule.steps or "
            "batch.tokens_per_step",
            schedule.total_steps(), tokens, kMaxTokens);
    std::vector<std::string> known;
    for (const auto& [name, keys] : model.parts.windows) known.push_back(name);
    for (const auto& [name, keys] : eval.windows) {
        if (std::find(known.begin(), known.end(), name) != known.end()) continue;
        throw_usage("eval.windows.{}: the model has no window of this name{}", name,
                    suggestion(name, {known.begin(), known.end()}));
    }
}

}  // namespace speedrun
