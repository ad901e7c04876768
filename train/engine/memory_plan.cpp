#include "train/engine/memory_plan.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/host_limits.h"
#include "train/checkpoint/state_pieces.h"
#include "train/comm/host_cores.h"
#include "train/engine/step_runner.h"

namespace speedrun {

namespace {

int num_gpus() {
    return std::max(1, static_cast<int>(query_cuda().gpus.size()));
}

// Largest number of ranks of this host that share this rank's memory.
int64_t ranks_on_device(const Ranks& ranks, const Device& device) {
    if (!ranks.world()) return 1;
    const int devices = device.kind() == DeviceKind::cpu ? 1 : num_gpus();
    return (ranks.world()->local_size() + devices - 1) / devices;
}

// Bytes of host memory on the rank that writes most.
int64_t bytes_on_host(const Config& config, const Ranks& ranks, StepRunner& runner,
                      const MemoryTable& table) {
    // libraries, streams, packed matmul operands, files: 11 to 18 MiB measured
    constexpr int64_t kProgram = 20 << 20;
    constexpr int64_t kBatches = 6;  // prefetched batches, and one in transfer to the device
    int64_t bytes = kProgram + kBatches * table.total(MemoryCategory::data);
    int64_t largest = 0;
    for (const Parameter& p : runner.state().table().all()) largest = std::max(largest, p.whole_numel());
    bytes += largest * size_of(DType::f32);  // final weights, one tensor at a time
    if (config.checkpoint.every == 0) return bytes;
    const ShardedState& state = runner.state().schedule.state();
    for (const Bucket& bucket : state.layout().all()) {
        if (!writes_bucket(ranks, bucket)) continue;
        for (const StateShard& shard : state.shards(bucket)) bytes += shard.values.bytes();
    }
    return bytes;
}

// NCCL's memory for the reducer's communicators and their parent, in bytes. Communicators over other axes add theirs in runs
// with a context or tensor axis. Assumed per communicator: 16 channels with two 4 MiB buffers (NCCL_BUFFSIZE) to each of two
// peers and as much for the other protocols; not yet measured on several GPUs.
int64_t bytes_of_nccl(const TrainState& state) {
    constexpr int64_t kCommunicator = int64_t{300} << 20;
    const bool used = state.ranks.mesh().world_size() > 1 &&
                      state.runtime.device().kind() == DeviceKind::cuda &&
                      state.config.parallel.communicator != CommunicatorKind::staged;
    return used ? (1 + state.reducer.num_communicators()) * kCommunicator : 0;
}

// Collectives of values between ranks that share rows or matrices, in a microbatch of a stage.
CollectiveRow value_collectives(const TrainState& state, int64_t stage) {
    const size_t model = state.stages.stages[static_cast<size_t>(stage)].model;
    return state.models[model]->value_collectives(state.ranks.mesh(), state.runtime.real());
}

// Program step with the most bytes of values and gradients, over all models.
BusiestStep busiest_step(const TrainState& state) {
    BusiestStep most;
    for (const auto& model : state.models) {
        BusiestStep busiest = model->busiest_step();
        if (busiest.bytes > most.bytes) most = std::move(busiest);
    }
    return most;
}

}  // namespace

RuntimeOptions dry_runtime_options(const Config& config) {
    return {.device = config.device,
            .precision = config.precision,
            .threads = static_cast<int>(config.threads),
            .libraries = config.cuda,
            .dependent_launch = config.cuda.dependent_launch,
            .dry = true};
}

RuntimeOptions runtime_options(const Config& config, const Ranks& ranks) {
    RuntimeOptions options = dry_runtime_options(config);
    options.dry = false;
    options.communicates = ranks.size() > 1;
    const int threads = ranks.world() ? threads_of_rank(*ranks.world()) : 0;
    if (options.threads == 0) options.threads = threads;
    if (ranks.size() > 1 && config.device != DeviceKind::cpu)
        options.gpu = ranks.world()->local_rank() % num_gpus();
    return options;
}

MemoryPlan plan_memory(const Config& config, const Ranks& ranks) {
    Runtime runtime(dry_runtime_options(config));
    StepRunner runner(config, runtime, ranks.without_world());
    runner.warm_up();
    std::vector<StepWork> work;
    std::vector<CollectiveRow> values;
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage) {
        work.push_back(runner.work_per_step(stage));
        values.push_back(value_collectives(runner.state(), stage));
    }
    return {.table = runtime.device().memory().print(),
            .bytes = runtime.device().memory().total(),
            .host_bytes = bytes_on_host(config, ranks, runner, runtime.device().memory()),
            .nccl_bytes = bytes_of_nccl(runner.state()),
            .busiest_step = busiest_step(runner.state()),
            .work = std::move(work),
            .values = std::move(values),
            .device = runtime.device().kind(),
            .real = runtime.real()};
}

int64_t largest_microbatch(Config config, int64_t bytes, const Ranks& ranks) {
    if (!config.batch.sequence_length.is_number() || !config.batch.microbatch_tokens.is_number()) return 0;
    const int64_t sequence = config.batch.sequence_length;
    const auto divides_every_step = [&](int64_t tokens) {
        for (const auto& entry : config.batch.tokens_per_step.entries())
            if (entry.from % (tokens * ranks.num_data_ranks()) != 0) return false;
        return true;
    };
    for (int64_t rows = config.batch.microbatch_tokens / sequence - 1; rows > 0; --rows) {
        if (!divides_every_step(rows * sequence)) continue;
        config.batch.microbatch_tokens = rows * sequence;
        if (plan_memory(config, ranks).needed() <= bytes) return config.batch.microbatch_tokens;
    }
    return 0;
}

bool fits_with_full_checkpointing(Config config, int64_t bytes, const Ranks& ranks) {
    config.memory = {.activation_checkpointing = Checkpointing::full};
    return plan_memory(config, ranks).needed() <= bytes;
}

void require_memory(const Config& config, const Device& device, const Ranks& ranks) {
    const int64_t free = device.available_bytes();
    if (free < 0) return;
    const int64_t sharing = ranks_on_device(ranks, device);
    const int64_t available = free / sharing;
    const MemoryPlan plan = plan_memory(config, ranks);
    if (plan.needed() <= available) return;
    const int64_t tokens = largest_microbatch(config, available, ranks);
    const bool keep_less = fits_with_full_checkpointing(config, available, ranks);
    std::string limit;
    if (device.kind() == DeviceKind::cpu) {
        const HostMemory memory = host_memory();
        if (memory.limit)
            limit = fmt::format(" of a limit of {:.1f} MiB ({})",
                                static_cast<double>(memory.limit->limit) / kMiB, memory.limit->source);
    }
    const std::string host = device.kind() == DeviceKind::cpu
                                 ? fmt::format(" ({:.1f} of it for the program, batches and checkpoints)",
                                               static_cast<double>(plan.host_bytes) / kMiB)
                                 : "";
    throw_usage(
        "out of memory: {} {:.1f} MiB of {} memory{}, and {:.1f} MiB{} are free{}. {}{}\n{}",
        sharing > 1 ? "each rank needs" : "the run needs", static_cast<double>(plan.needed()) / kMiB,
        word_of(std::optional(device.kind())), host, static_cast<double>(free) / kMiB, limit,
        sharing > 1 ? fmt::format(" for {} ranks", sharing) : std::string(),
        tokens > 0 ? fmt::format("It fits with --set batch.microbatch_tokens={} (now {}).", tokens,
                                 config.batch.microbatch_tokens)
                   : std::string("No batch.microbatch_tokens fits: lower model.layers.count, model.model_dim "
                                 "or batch.sequence_length."),
        keep_less ? " It fits with --set memory.activation_checkpointing=full." : "", plan.table);
}

}  // namespace speedrun
