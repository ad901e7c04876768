#include <fmt/chrono.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "data/data_identity.h"
#include "data/shard_patterns.h"
#include "data/xxh128.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/weights.h"
#include "train/comm/device_world.h"
#include "train/comm/joint_check.h"
#include "train/comm/simulated_world.h"
#include "train/comm/stop_signals.h"
#include "train/comm/world.h"
#include "train/commands/commands.h"
#include "train/commands/run_tokenizer.h"
#include "train/commands/train_run.h"
#include "train/config/cannot_learn.h"
#include "train/config/config_json.h"
#include "train/config/extend_run.h"
#include "train/engine/batch_sources.h"
#include "train/engine/initial_weights.h"
#include "train/engine/memory_plan.h"
#include "train/engine/trainer.h"
#include "train/model/build_model.h"
#include "train/runlog/build_info.h"
#include "train/runlog/environment.h"
#include "train/sharding/resolve_ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

namespace {

std::atomic<int> stop_signal{0};

// The first signal ends the run after the current step, with a checkpoint; an insisting one ends it without.
void on_signal(int signal) {
    int none = 0;
    stop_signal.compare_exchange_strong(none, signal);
    if (insists(signal)) _exit(128 + signal);
}

std::string default_name(const std::string& config) {
    return fmt::format("{}-{:%Y%m%d-%H%M%S}", std::filesystem::path(config).stem().string(),
                       fmt::localtime(std::time(nullptr)));
}

void parse_trace(const std::string& text, TrainerOptions& options) {
    if (text.empty()) return;
    constexpr long long kMaxSteps = 1LL << 60;
    long long first = 0, last = 0;
    char rest = 0;
    if (std::sscanf(text.c_str(), "%lld:%lld%c", &first, &last, &rest) != 2 || first < 0 || last < first ||
        last > kMaxSteps) {
        throw_usage("--trace {}: expected FIRST:LAST with 0 <= FIRST <= LAST, for example --trace 5:8", text);
    }
    options.trace_first = first;
    options.trace_last = last;
}

// "168 steps of 8192 tokens (1 microbatches)"
std::string steps_text(const Config& config, const Ranks& ranks) {
    const ScheduleConfig& schedule = config.schedule;
    if (schedule.num_stages() > 1)
        return fmt::format("{} steps in {} stages, {} tokens", schedule.total_steps(), schedule.num_stages(),
                           config.tokens_before(schedule.total_steps()));
    const Config whole = config.in_stage(0);
    return fmt::format("{} steps of {} tokens ({} microbatches)", schedule.total_steps(),
                       whole.batch.tokens_per_step, whole.microbatches_per_step(ranks.num_data_ranks()));
}

std::string header(const Config& config, const Ranks& ranks, const Runtime& runtime,
                   const ParameterTable& table, const std::string& folder) {
    const ModelConfig& m = config.model;
    const int64_t num_layers = m.parts.num_layers();
    const std::string who = ranks.size() > 1
                                ? fmt::format("{} ranks ({}, {}), each ", ranks.size(),
                                              word_of(ranks.sharing().strategy), ranks.mesh().describe())
                                : "";
    return fmt::format("{}: {:.2f}M parameters ({} layer{} x {}), {}, {}{}", folder,
                       static_cast<double>(table.numel()) * 1e-6, num_layers, num_layers > 1 ? "s" : "",
                       m.model_dim, steps_text(config, ranks), who, runtime.description());
}

std::string resume_line(const CheckpointReader& from, std::string_view precision) {
    const CheckpointInfo& info = from.info();
    std::string text =
        fmt::format("continues after step {} from {}, written by {} rank{} ({}, {})", info.step,
                    from.folder(), info.ranks, info.ranks > 1 ? "s" : "", info.strategy, info.mesh);
    if (info.precision != precision)
        text += fmt::format("; it computed in {} and goes on in {}", info.precision, precision);
    return text;
}

std::string result_line(const RunSummary& s) {
    std::string text = fmt::format("result: {}", s.status);
    if (s.val_loss) text += fmt::format("  validation loss {:.4f} nats/token", *s.val_loss);
    text +=
        fmt::format("  training time {:.1f} s  ({} steps, {:.2f}M tokens, start-up {:.2f} s)",
                    s.train_ms * 1e-3, s.steps, static_cast<double>(s.tokens) * 1e-6, s.startup_ms * 1e-3);
    if (s.target_loss)
        text +=
            fmt::format("\ntarget {:.4f}: {}", *s.target_loss, s.target_reached ? "reached" : "not reached");
    return text;
}

std::string time_table(const RunSummary& s) {
    const double total = s.train_ms, compute = total - s.optimizer_ms - s.comm_exposed_ms;
    const auto row = [&](const std::string& name, double ms) {
        return fmt::format("  {:<34} {:>9.1f} ms {:>5.1f}%\n", name, ms, total > 0 ? 100 * ms / total : 0);
    };
    const auto sum = [&](double RunSummary::*member, const char* note) {
        return row(field_of(member).title + std::string(note), s.*member);
    };
    std::string text = "where the time went\n" + row("forward and backward", compute) +
                       sum(&RunSummary::optimizer_ms, "") + sum(&RunSummary::comm_exposed_ms, "") +
                       (s.ranks > 1 ? sum(&RunSummary::comm_ms, " (overlapped)") : "") +
                       sum(&RunSummary::data_ms, " (overlapped)");
    if (s.checkpoint_stall_ms > 0) text += sum(&RunSummary::checkpoint_stall_ms, " (of these)");
    if (s.ungraphed_steps > 0)
        text += fmt::format(
            "  steps without graph: {} of {} (graphs are captured for steps in which each token has a target)\n",
            s.ungraphed_steps, s.steps);
    return text + fmt::format(
                      "  step p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms (step {}); {:.0f} GFLOP/s, {:.0f}% "
                      "of a large product's {:.0f}",
                      s.step_ms.p50, s.step_ms.p99, s.step_ms.max, s.step_ms.max_at_step,
                      s.flops_per_s * 1e-9,
                      s.ceiling_flops_per_s > 0 ? 100 * s.flops_per_s / s.ceiling_flops_per_s : 0,
                      s.ceiling_flops_per_s * 1e-9);
}

// Returns one line per source of a mixture, each ended.
std::string source_table(const RunSummary& s) {
    std::string text;
    for (const SourceUse& use : s.sources)
        text += fmt::format(
            "  {:>6.2f}% of the rows: {}, {} tokens = {:.3f} epochs; an epoch has {} tokens and drops {}\n",
            100 * use.share, use.files, use.tokens, use.epochs, use.epoch.tokens_seen,
            use.epoch.tokens_dropped);
    return text.empty() ? text : "sources of the mixture\n" + text;
}

// Returns the config's timeout for lost peers, which is needed before the world that reports errors in the config exists.
double timeout_of(const TrainOptions& options) {
    try {
        return read_config(options.config, options.settings).parallel.timeout_s;
    } catch (const Error&) {
        return WorldOptions{}.timeout_s;
    }
}

std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

// Identifies the run's shards; throws if they do not belong together.
DataIdentity check_data(const Config& config) {
    DataIdentity data;
    std::vector<std::string> files;
    std::vector<int64_t> counts;
    for (const std::vector<std::string>& source : train_files(config)) {
        files.insert(files.end(), source.begin(), source.end());
        counts.push_back(std::ssize(source));
    }
    data.train = identify_split(files);
    if (counts.size() > 1) data.train.source_shards = std::move(counts);
    const TrainingData train(config);
    if (config.data.val.empty()) throw_usage("data.val is empty: name the token shards");
    data.val = identify_split(expand_globs(config.data.val));
    open_dataset(config, config.data.val, "data.val");
    expect_one_tokenizer(data);
    if (!config.data.allow_overlap) expect_no_overlap(data);
    return data;
}

// All refusals occur before the folder is created.
DataIdentity check_run(const Config& config, const Ranks& ranks) {
    if (config.parallel.simulates() && !config.record.track.empty()) {
        throw_usage(
            "parallel.simulate_*: an attempt at track '{}' cannot run on a simulated network; drop the "
            "simulate keys, or measure with --set record.track=",
            config.record.track);
    }
    const auto& groups = config.optimizers.groups;
    if (config.schedule.total_steps() > 0 &&
        std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.frozen(); }))
        throw_usage(
            "optimizers.groups: every group is frozen (lr 0): nothing would be trained. Set the lr of a group, or "
            "schedule.steps=0");
    bucket_rules(ranks, parameters_of(config.model, config.longest_sequence(), ranks.tensor()),
                 config.optimizers);
    return check_data(config);
}

// A run that is continued in its folder keeps its origin.
std::optional<RunOrigin> origin_of(const ResumePoint& point, const std::optional<InitialWeights>& initial) {
    if (initial) return initial->origin;
    if (!point.reader) return std::nullopt;
    const std::string& folder = point.reader->folder();
    const CheckpointInfo& info = point.reader->info();
    if (!point.in_place)
        return RunOrigin{.kind = "checkpoint",
                         .path = folder,
                         .step = info.step,
                         .xxh128 = xxh128_file(folder + "/XXH128SUMS")};
    if (info.origin.empty()) return std::nullopt;
    return run_origin_from_json(info.origin, folder + "/checkpoint.json: origin");
}

// Locks the folder on the first rank before checkpoints are listed, as another writer may delete them. Null: no such run.
std::shared_ptr<FolderLock> lock_existing(World& world, const std::string& out, const std::string& name) {
    std::shared_ptr<FolderLock> lock;
    check_together(world, [&] {
        if (world.rank() == 0) lock = RunFolder::lock(out, name);
    });
    return lock;
}

// Creates or reopens the folder on the first rank; silent on the others.
RunFolder open_folder(World& world, const std::string& out, const std::string& name, bool in_place,
                      std::shared_ptr<FolderLock> lock) {
    std::optional<RunFolder> folder;
    check_together(world, [&] {
        if (world.rank() != 0) return;
        if (!in_place) lock.reset();
        folder.emplace(in_place ? RunFolder::reopen(out, name, std::move(lock)) : RunFolder(out, name));
    });
    const std::string path = world.all_gather(folder ? folder->path() : "").front();
    return folder ? std::move(*folder) : RunFolder::silent(path);
}

Environment environment_of(World& world, const Runtime& runtime) {
    Environment environment = read_environment();
    for (const std::string& text :
         world.all_gather(RankLocation{environment.host, runtime.description()}.to_text()))
        environment.ranks.push_back(RankLocation::from_text(text));
    return environment;
}

// Returns the simulated network of the config if this rank can read it; then all ranks can.
std::unique_ptr<World> slowed_down(World& world, const TrainOptions& options) {
    std::optional<SimulatedNetwork> network;
    check_together(
        world, [&] { network = simulated_network(read_config(options.config, options.settings).parallel); });
    return network ? make_simulated_world(world, *network) : nullptr;
}

}  // namespace

void check_trainable(World& world, const Config& config) {
    check_together(world, [&] { check_run(config, resolve_ranks(config, world)); });
}

int train_on(World& world, const TrainOptions& options, const std::function<Config()>& read) {
    Config config;
    TrainerOptions trainer_options;
    Ranks ranks;
    DataIdentity data;
    check_together(world, [&] {
        config = read();
        if (options.seed) config.seed = *options.seed;
        if (options.extend_to) config = extend_config(config, *options.extend_to);
        parse_trace(options.trace, trainer_options);
        if (options.resume == "auto" && options.name.empty())
            throw_usage("--resume auto: say with --name which run to continue, or start");
        if (options.extend_to && options.resume.empty())
            throw_usage("--extend-to {}: name the checkpoint to extend from with --resume",
                        *options.extend_to);
        ranks = resolve_ranks(config, world);
        data = check_run(config, ranks);
    });
    expect_same_on_all_ranks(world, "config", lines_of(config_to_json(config)));
    trainer_options.data = data_identity_to_json(data);
    expect_same_on_all_ranks(world, "data", lines_of(trainer_options.data));
    trainer_options.quiet = options.quiet;
    trainer_options.began_ms = options.began_ms;
    trainer_options.stop_signal = &stop_signal;

    const RuntimeOptions runtime_choice = runtime_options(config, ranks);
    std::unique_ptr<Runtime> runtime;
    check_together(world, [&] {
        runtime = std::make_unique<Runtime>(runtime_choice);
        require_memory(config, runtime->device(), ranks);
    });
    expect_same_on_all_ranks(world, "build and precision",
                             {build_info().git_sha, std::string(name_of(runtime->compute_dtype()))});

    const DeviceWorld device_world = make_device_world(world, runtime->device(), config.parallel);
    if (device_world.world) ranks = ranks.with_world(*device_world.world);

    const std::string name = options.name.empty() ? default_name(options.config) : options.name;
    std::shared_ptr<FolderLock> lock;
    if (!options.resume.empty()) lock = lock_existing(world, options.out, name);
    const ResumePoint point = find_resume_point(world, options.resume, options.out + "/" + name, config,
                                                &data, options.extend_to.has_value());
    trainer_options.resume = point.reader.get();
    const int64_t first_step = point.reader ? point.reader->info().step : 0;
    std::optional<InitialWeights> initial;  // a continued run has its checkpoint's
    if (!point.reader && !config.model.init_from.empty()) {
        initial = read_initial_weights(world, config, &data);
        trainer_options.initial = &*initial;
    }
    check_together(world, [&] { trainer_options.origin = origin_of(point, initial); });
    RunFolder folder = open_folder(world, options.out, name, point.in_place, std::move(lock));
    const Environment environment = environment_of(world, *runtime);
    std::string tokenizer_note;
    check_together(world, [&] {
        folder.write_config(config_to_json(config));
        folder.write_data(trainer_options.data);
        if (ranks.first()) tokenizer_note = store_tokenizer(folder, config);
        folder.write_environment(environment_to_json(environment), point.in_place ? first_step : 0);
    });
    const bool is_first_rank = ranks.first();
    const auto say = [&](const std::string& text) {
        folder.log(text);
        if (is_first_rank && !options.quiet) std::printf("%s\n", text.c_str());
        std::fflush(stdout);
    };
    std::string problem;
    try {
        Trainer trainer(config, *runtime, ranks, folder, trainer_options);
        if (initial) initial->values = {};
        const ParameterTable& table = trainer.runner().state().table();
        for (const std::string& note : runtime->notes()) say(note);
        if (!device_world.note.empty()) say(device_world.note);
        for (const std::string& message : point.messages) say("warning: " + message);
        if (!tokenizer_note.empty()) say("note: " + tokenizer_note);
        say(header(config, ranks, *runtime, table, folder.path()));
        if (const std::string warning = trainer.cut_trace_window(); !warning.empty()) {
            say("warning: " + warning);
            if (is_first_rank && options.quiet) std::fprintf(stderr, "warning: %s\n", warning.c_str());
        }
        for (const std::string& what : parts_that_cannot_learn(config.model)) say("warning: " + what);
        if (point.reader) say(resume_line(*point.reader, name_of(runtime->compute_dtype())));
        if (initial) {
            for (const std::string& warning : initial->warnings) say("warning: " + warning);
            say("starts from " + describe(initial->origin));
        }
        folder.log("memory\n" + runtime->device().memory().print());
        handle_stop_signals(on_signal);
        RunSummary summary = trainer.run();
        if (const int signal = stop_signal; signal != 0)
            say(fmt::format("stopped by {} after step {}", signal_text(signal), summary.steps));
        runtime->synchronize();
        TrainState& state = trainer.runner().state();
        try {
            save_weights(
                folder.path() + "/checkpoints/final", state.table(),
                [&](const Parameter& p, float* host) { state.read_master(p, host); }, &world);
        } catch (const std::exception& error) {
            summary.status = "failed";
            summary.message = error.what();
            folder.write_summary(summary);
            throw;
        }
        say(source_table(summary) + time_table(summary));
        folder.log(result_line(summary));
        if (is_first_rank && options.print_result) std::printf("%s\n", result_line(summary).c_str());
        problem = trainer.problem();
    } catch (const std::exception& error) {
        folder.log(std::string("error: ") + error.what());
        if (const std::string lost = folder.problem(); !lost.empty())
            std::fprintf(stderr, "warning: %s\n", lost.c_str());
        throw;
    }
    // Training completed, but files are incomplete: the exit code must report it.
    if (world.max(problem.empty() ? 0 : 1) > 0) {
        if (is_first_rank && !problem.empty()) std::fprintf(stderr, "error: %s\n", problem.c_str());
        return static_cast<int>(ExitCode::failure);
    }
    // A signal may reach only some of the ranks.
    const int signal = static_cast<int>(world.max(stop_signal.load()));
    return signal != 0 ? 128 + signal : 0;
}

int run_train(const TrainOptions& options) {
    const auto world = make_training_world({.timeout_s = timeout_of(options)}, options.alone);
    return run_rank(*world, [&] {
        const auto slow = slowed_down(*world, options);
        return train_on(slow ? *slow : *world, options,
                        [&] { return read_config(options.config, options.settings); });
    });
}

}  // namespace speedrun
