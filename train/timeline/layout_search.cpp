#include "train/timeline/layout_search.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/device/error.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

constexpr int kMicrobatches = 3;
constexpr std::array<int64_t, 5> kBucketBytes{0, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

// Microbatch sizes of n sequences per rank: the divisors of n, largest first.
std::vector<int64_t> divisors_down(int64_t n) {
    std::vector<int64_t> found;
    for (int64_t d = n; d >= 1; --d)
        if (n % d == 0) found.push_back(d);
    return found;
}

class Search {
  public:
    Search(const Config& stage, const LayoutSpace& space, const PredictLayout& predict,
           const std::function<void(int64_t)>& progress)
        : stage_(stage), space_(space), predict_(predict), progress_(progress) {}

    LayoutSearch run() {
        const int64_t inside = std::min<int64_t>(space_.ranks, space_.ranks_per_host);
        for (int64_t tensor = 1; tensor <= inside; tensor *= 2)
            for (int64_t context = 1; tensor * context <= inside; context *= 2)
                if (space_.ranks % (tensor * context) == 0) try_axes(tensor, context);
        sort();
        const size_t finalists = std::min(kFinalists, found_.size());
        for (size_t i = 0; i < finalists; ++i) try_buckets(found_[i]);
        sort();
        LayoutSearch result;
        for (const Found& found : found_) result.layouts.push_back({settings_of(found.config), found.cost});
        result.tried = tried_;
        result.too_large = too_large_;
        return result;
    }

  private:
    struct Found {
        Config config;
        LayoutCost cost;
    };

    void try_axes(int64_t tensor, int64_t context) {
        Config config = stage_;
        ParallelConfig& parallel = config.parallel;
        parallel.tensor = tensor;
        parallel.context = context;
        const int64_t data = space_.ranks / (tensor * context),
                      of_a_host = std::max<int64_t>(1, space_.ranks_per_host / (tensor * context));
        std::vector<int64_t> shards{data};
        if (of_a_host < data && data % of_a_host == 0) shards.push_back(of_a_host);
        for (const bool sequence : {false, true}) {
            if (sequence && tensor == 1) continue;
            parallel.sequence = sequence;
            for (const int64_t shard : shards) {
                parallel.replicate = data / shard;
                parallel.shard = std::to_string(shard);
                for (const Strategy strategy :
                     {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
                    // With one shard, zero1 to zero3 equal ddp, which is tried once (shard = data).
                    if (strategy == Strategy::ddp ? shard != data : shard == 1) continue;
                    parallel.strategy = strategy;
                    try_microbatches(config, data);
                }
            }
        }
    }

    void try_microbatches(Config config, int64_t data) {
        const BatchConfig& batch = stage_.batch;
        const int64_t rows = batch.tokens_per_step / batch.sequence_length;
        if (rows % data != 0) return;
        int fitting = 0;
        for (const int64_t at_once : divisors_down(rows / data)) {
            config.batch.microbatch_tokens = at_once * int64_t{batch.sequence_length};
            for (const Checkpointing checkpointing :
                 {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
                config.memory.activation_checkpointing = checkpointing;
                const std::optional<LayoutCost> cost = try_one(config);
                if (!cost) return;  // cannot run with any number of rows
                if (cost->memory_bytes > space_.memory_bytes) continue;
                found_.push_back({config, *cost});
                ++fitting;
                break;
            }
            if (fitting == kMicrobatches) return;
        }
    }

    void try_buckets(Found& found) {
        const Config config = found.config;
        for (const int64_t bytes : kBucketBytes) {
            if (bytes == config.parallel.bucket_bytes) continue;
            Config other = config;
            other.parallel.bucket_bytes = bytes;
            const std::optional<LayoutCost> cost = try_one(other);
            if (cost && cost->memory_bytes <= space_.memory_bytes && cost->step_ms < found.cost.step_ms)
                found = {other, *cost};
        }
    }

    std::optional<LayoutCost> try_one(const Config& config) {
        try {
            config.validate();
            const LayoutCost cost = predict_(config, plan_ranks(config, space_.ranks));
            ++tried_;
            if (cost.memory_bytes > space_.memory_bytes) ++too_large_;
            if (progress_) progress_(tried_);
            return cost;
        } catch (const Error& error) {
            if (error.code() != ExitCode::usage) throw;
            return std::nullopt;
        }
    }

    void sort() {
        std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
            return std::pair(a.cost.step_ms, a.cost.memory_bytes) <
                   std::pair(b.cost.step_ms, b.cost.memory_bytes);
        });
    }

    std::vector<std::string> settings_of(const Config& config) const {
        std::vector<std::string> settings;
        const auto say = [&](const char* key, const auto& before, const auto& after,
                             const std::string& text) {
            if (before != after) settings.push_back(fmt::format("{}={}", key, text));
        };
        const ParallelConfig &p = stage_.parallel, &q = config.parallel;
        say("parallel.strategy", p.strategy, q.strategy, word_of(q.strategy));
        say("parallel.replicate", p.replicate, q.replicate, std::to_string(q.replicate));
        // "auto" follows from replicate.
        if (p.shard != "auto") say("parallel.shard", p.shard, q.shard, q.shard);
        say("parallel.context", p.context, q.context, std::to_string(q.context));
        say("parallel.tensor", p.tensor, q.tensor, std::to_string(q.tensor));
        say("parallel.sequence", p.sequence, q.sequence, q.sequence ? "true" : "false");
        say("parallel.bucket_bytes", p.bucket_bytes, q.bucket_bytes, std::to_string(q.bucket_bytes));
        say("memory.activation_checkpointing", stage_.memory.activation_checkpointing,
            config.memory.activation_checkpointing, word_of(config.memory.activation_checkpointing));
        const int64_t before = stage_.batch.microbatch_tokens, after = config.batch.microbatch_tokens;
        say("batch.microbatch_tokens", before, after, std::to_string(after));
        return settings;
    }

    const Config& stage_;
    const LayoutSpace& space_;
    const PredictLayout& predict_;
    const std::function<void(int64_t)>& progress_;
    std::vector<Found> found_;
    int64_t tried_ = 0, too_large_ = 0;
};

}  // namespace

LayoutSearch search_layouts(const Config& stage, const LayoutSpace& space, const PredictLayout& predict,
                            const std::function<void(int64_t)>& progress) {
    return Search(stage, space, predict, progress).run();
}

}  // namespace speedrun
