#include "train/commands/plan_search.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "train/commands/plan_timeline.h"
#include "train/engine/memory_plan.h"
#include "train/sharding/resolve_ranks.h"
#include "train/timeline/layout_search.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShown = 10;
// The rest is for memory outside of plans: the context, buffers of cuBLASLt and NCCL, fragmentation.
constexpr double kShareOfMemory = 0.9;

double tokens_per_s(const Config& stage, const LayoutCost& cost) {
    return static_cast<double>(stage.batch.tokens_per_step) / (cost.step_ms * 1e-3);
}

Json json_of(const Config& stage, const LayoutCost& cost) {
    return {{"step_ms", cost.step_ms},
            {"exposed_ms", cost.exposed_ms},
            {"tokens_per_s", tokens_per_s(stage, cost)},
            {"memory_bytes", cost.memory_bytes}};
}

// "--set parallel.strategy=zero1 --set ..."
std::string options_text(const std::vector<std::string>& settings) {
    std::string text;
    for (const std::string& setting : settings) text += (text.empty() ? "--set " : " --set ") + setting;
    return text.empty() ? "the config as it is" : text;
}

}  // namespace

int print_search(const PlanOptions& options, const Config& stage, int num_ranks) {
    const PlannedGpu gpu(options, stage);
    const Network network = network_of(options, gpu.model());
    const PredictLayout predict = [&](const Config& config, const Ranks& ranks) {
        const PredictedStep step = predict_gpu_step(config, ranks, gpu.model(), gpu.report(), network);
        return LayoutCost{step.timeline.step_ms, step.timeline.exposed_ms, step.steps.memory_bytes};
    };
    const auto memory = static_cast<int64_t>(kShareOfMemory * 1e9 * gpu.model().memory_gb);
    const bool watched = isatty(STDERR_FILENO) != 0;
    const auto show = [watched](int64_t tried) {
        if (watched && tried % 10 == 0)
            std::fprintf(stderr, "\r%lld layouts tried", static_cast<long long>(tried));
    };
    const LayoutSearch search =
        search_layouts(stage, {num_ranks, network.ranks_per_host, memory}, predict, show);
    if (watched) std::fprintf(stderr, "\r%30s\r", "");
    if (search.tried == 0)
        throw_usage(
            "plan --search: no layout of {} ranks can share this config's steps of {} sequences (batch.tokens_per_step {})",
            num_ranks, stage.batch.tokens_per_step / stage.batch.sequence_length,
            int64_t{stage.batch.tokens_per_step});
    if (search.layouts.empty())
        throw_usage(
            "plan --search: none of {} layouts on {} ranks fits into {:.0f} GB of an {}: more ranks, or a smaller model",
            search.tried, num_ranks, static_cast<double>(memory) * 1e-9, gpu.model().title);

    std::optional<LayoutCost> now;
    std::string refused;
    try {
        now = predict(stage, plan_ranks(stage, num_ranks));
    } catch (const Error& error) {
        if (error.code() != ExitCode::usage) throw;
        refused = error.what();
    }
    const size_t shown = std::min(kShown, search.layouts.size());
    if (options.json) {
        Json json = {{"config", options.config},
                     {"gpu", gpu.model().title},
                     {"ranks", num_ranks},
                     {"network", network.name},
                     {"tried", search.tried},
                     {"too_large", search.too_large},
                     {"config_as_it_is", now ? json_of(stage, *now) : Json(nullptr)}};
        for (size_t i = 0; i < search.layouts.size(); ++i) {
            Json layout = json_of(stage, search.layouts[i].cost);
            layout["set"] = search.layouts[i].settings;
            json["layouts"].push_back(std::move(layout));
        }
        std::printf("%s\n", json.dump(2).c_str());
        return 0;
    }
    std::printf("%s on %d x %s (modelled), steps of %lld tokens, network%s: %s (%s)\n",
                options.config.c_str(), num_ranks, gpu.model().title,
                static_cast<long long>(stage.batch.tokens_per_step),
                options.network.empty() ? ", the default" : "", network.name.c_str(), network.source.c_str());
    std::printf("%lld layouts tried, of which %lld need more than %.0f GB of a GPU; the fastest %zu:\n\n",
                static_cast<long long>(search.tried), static_cast<long long>(search.too_large),
                static_cast<double>(memory) * 1e-9, shown);
    std::printf("%12s %12s %12s %8s  %s\n", "step ms", "exposed ms", "tokens/s", "GiB", "settings");
    const auto row = [&](const LayoutCost& cost, const std::string& text) {
        std::printf("%12.3f %12.3f %12.0f %8.2f  %s\n", cost.step_ms, cost.exposed_ms,
                    tokens_per_s(stage, cost), static_cast<double>(cost.memory_bytes) / (1024 * kMiB),
                    text.c_str());
    };
    for (size_t i = 0; i < shown; ++i) row(search.layouts[i].cost, options_text(search.layouts[i].settings));
    if (now) {
        row(*now, "the config as it is");
        if (now->memory_bytes > memory) std::printf("warning: the config as it is does not fit\n");
    } else {
        std::printf("note: the config as it is cannot run on %d ranks: %s\n", num_ranks, refused.c_str());
    }
    std::printf("note: modelled, not measured; layouts within some percent of each other are equal\n");
    return 0;
}

}  // namespace speedrun
