#include <fmt/chrono.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "data/dataset.h"
#include "train/checkpoint/weights.h"
#include "train/commands/commands.h"
#include "train/config/config_json.h"
#include "train/memory_plan.h"
#include "train/record/environment.h"
#include "train/trainer.h"

namespace speedrun {

namespace {

std::atomic<int> stop_signal{0};

// First signal: finish the step, save, end. Second: end at once.
void on_signal(int signal) {
    if (stop_signal.exchange(signal) != 0) _exit(128 + signal);
}

std::string default_name(const std::string& config) {
    return fmt::format("{}-{:%Y%m%d-%H%M%S}", std::filesystem::path(config).stem().string(),
                       fmt::localtime(std::time(nullptr)));
}

void parse_trace(const std::string& text, TrainerOptions& options) {
    if (text.empty()) return;
    long long first = 0, last = 0;
    char rest = 0;
    if (std::sscanf(text.c_str(), "%lld:%lld%c", &first, &last, &rest) != 2 || first < 0 || last < first) {
        throw_usage("--trace {}: expected FIRST:LAST with 0 <= FIRST <= LAST, for example --trace 5:8", text);
    }
    options.trace_first = first;
    options.trace_last = last;
}

// Ranks of a launcher would each train the same model and fight over the run folder.
void refuse_many_ranks() {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
        const char* size = std::getenv(variable);
        if (size && std::atoi(size) > 1) {
            throw_usage("started as one of {} ranks ({}), but this version runs one rank: leave mpirun away",
                        size, variable);
        }
    }
}

std::string header(const Config& config, const Runtime& runtime, const ParameterTable& table,
                   const std::string& folder) {
    const ModelConfig& m = config.model;
    return fmt::format(
        "{}: {} model, {:.2f}M parameters ({} layers x {}), {} steps of {} tokens ({} microbatches), {}",
        folder, m.preset, static_cast<double>(table.numel()) * 1e-6, m.num_layers, m.model_dim,
        config.schedule.steps, config.batch.tokens_per_step, config.microbatches_per_step(),
        runtime.description());
}

std::string result_line(const RunSummary& s) {
    std::string text = fmt::format("result: {}", s.status);
    if (s.val_loss) text += fmt::format("  validation loss {:.4f} nats/token", *s.val_loss);
    text +=
        fmt::format("  training time {:.1f} s  ({} steps, {:.2f}M tokens, start-up {:.2f} s)",
                    s.train_ms * 1e-3, s.steps, static_cast<double>(s.tokens) * 1e-6, s.startup_ms * 1e-3);
    if (s.target_loss)
        text += fmt::format("\ntarget {:.4f}: {}", *s.target_loss,
                            s.target_reached() ? "reached" : "not reached");
    return text;
}

std::string time_table(const RunSummary& s) {
    const double total = s.train_ms, compute = total - s.optimizer_ms;
    const auto row = [&](const char* name, double ms) {
        return fmt::format("  {:<34} {:>9.1f} ms {:>5.1f}%\n", name, ms, total > 0 ? 100 * ms / total : 0);
    };
    std::string text = "where the time went\n" + row("forward and backward", compute) +
                       row("optimizer after backward", s.optimizer_ms) + row("communication exposed", 0.0) +
                       row("host waited for data (overlapped)", s.data_ms);
    return text + fmt::format(
                      "  step p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms (step {}); {:.0f} GFLOP/s, {:.0f}% "
                      "of a large product's {:.0f}",
                      s.step_p50_ms, s.step_p99_ms, s.step_max_ms, s.step_max_at, s.flops_per_s * 1e-9,
                      s.ceiling_flops_per_s > 0 ? 100 * s.flops_per_s / s.ceiling_flops_per_s : 0,
                      s.ceiling_flops_per_s * 1e-9);
}

}  // namespace

int run_train(const TrainOptions& options) {
    refuse_many_ranks();
    Config config = read_config(options.config, options.settings);
    if (options.seed) config.seed = *options.seed;
    TrainerOptions trainer_options;
    trainer_options.quiet = options.quiet;
    trainer_options.stop_signal = &stop_signal;
    parse_trace(options.trace, trainer_options);

    Runtime runtime(runtime_options(config));
    // Everything that can be refused is refused before the folder is made.
    const ParameterTable table(config.model, config.batch.sequence_length);
    assign_groups(table, config.optimizers);
    for (const auto& [patterns, key] :
         {std::pair{&config.data.train, "data.train"}, std::pair{&config.data.val, "data.val"}}) {
        if (patterns->empty()) throw_usage("{} is empty: name the token shards", key);
        expand_globs(*patterns);
    }
    require_memory(config, runtime.device());

    RunFolder folder(options.out, options.name.empty() ? default_name(options.config) : options.name);
    folder.write_config(config_to_json(config));
    folder.write_environment(environment_to_json(read_environment()));
    const auto say = [&](const std::string& text) {
        folder.log(text);
        if (!options.quiet) std::printf("%s\n", text.c_str());
        std::fflush(stdout);
    };
    try {
        Trainer trainer(config, runtime, folder, trainer_options);
        for (const std::string& note : runtime.notes()) say(note);
        say(header(config, runtime, table, folder.path()));
        folder.log("memory\n" + runtime.device().memory().print());
        struct sigaction action {};
        action.sa_handler = on_signal;
        if (sigaction(SIGINT, &action, nullptr) != 0 || sigaction(SIGTERM, &action, nullptr) != 0) {
            throw Error(ExitCode::failure, "signal handlers cannot be installed");
        }
        const RunSummary summary = trainer.run();
        runtime.synchronize();
        StepRunner& runner = trainer.runner();
        save_weights(folder.path() + "/checkpoints/final", runner.model().table(),
                     [&](const Parameter& p, void* host) { runner.read_master(p, host); });
        say(time_table(summary));
        folder.log(result_line(summary));
        std::printf("%s\n", result_line(summary).c_str());
    } catch (const std::exception& error) {
        folder.log(std::string("error: ") + error.what());
        throw;
    }
    return stop_signal != 0 ? 128 + stop_signal : 0;
}

}  // namespace speedrun
