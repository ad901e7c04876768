// Whole runs on ranks that are threads: stopped and continued as by the command line, with comparisons of runs and checkpoints.
#pragma once

#include <atomic>
#include <cmath>

#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "tests/runs/run_fixture.h"
#include "tests/sanitized.h"
#include "tests/train/small_model.h"
#include "train/checkpoint/resume.h"
#include "train/comm/simulated_world.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing {

// Relative tolerance of losses between several ranks and one: f32 sums in another order, amplified by twelve steps; as in the
// tests of the engine.
constexpr double kRanksTolerance = 1e-5;

// Strategies of tests on two ranks; with sanitizers one.
inline std::vector<std::string> strategies() {
    if (kSanitized) return {"zero2"};
    return {"ddp", "zero1", "zero2", "zero3"};
}
inline std::string by(const std::string& strategy) {
    return "parallel.strategy=" + strategy;
}

struct RunSetup {
    int ranks = 1, replicate = 1;
    const char* strategy = "ddp";
    const char* optimizer =
        "adamw";  // for matrices; "normuon": muon with normuon; "heads": also a matrix per head
    const char* precision = "f32";
    int microbatch_tokens = 64;  // tokens per rank and microbatch; a step has 256

    Settings settings() const {
        const std::string type = std::string(optimizer) == "adamw" ? "adamw" : "muon";
        const bool heads = std::string(optimizer) == "heads",
                   normuon = heads || std::string(optimizer) == "normuon";
        return {"schedule.steps=10", "model.layers.count=1", "batch.tokens_per_step=256", "device=cpu",
                "threads=1", "eval.every=5", "checkpoint.keep=100", "data.val_tokens=300",
                "precision=" + std::string(precision), by(strategy),
                "parallel.replicate=" + std::to_string(replicate),
                "batch.microbatch_tokens=" + std::to_string(microbatch_tokens),
                "optimizers.groups.0.type=" + type,
                std::string("optimizers.groups.0.normuon=") + (normuon ? "true" : "false"),
                // Matrices of 16 and of 32 rows have different numbers of lines in one parameter.
                std::string("optimizers.groups.0.normuon_lines=") + (heads ? "rows" : "auto"),
                std::string("optimizers.groups.0.heads_per_matrix=") + (heads ? "1" : "0")};
    }
};
constexpr RunSetup kOneRank{1, 1, "ddp", "normuon", "f32", 256};

// Ten steps of a model of two layers with this MLP and head; AdamW steps every other time. A checkpoint every two steps.
inline Settings two_groups(const std::string& mlp, const std::string& head) {
    return {
        R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
                "tables": {"embed": {"init": {"type": "normal", "value": 0.5}}},
                "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
                "layers": {"count": 2, "each": {"attention": {"heads": 2}, )" +
            mlp + R"(}}, "output": [{"type": "norm"}], "head": )" + head + "}",
        R"(optimizers.groups=[{"params": ["blocks.*.weight"], "type": "muon", "lr": 0.02}, {"params": ["*"], "lr": 0.003, "every": 2}])",
        "schedule.steps=10",
        "checkpoint.every=2",
        "checkpoint.keep=100",
        "eval.every=2",
        "batch.microbatch_tokens=128",
        "threads=1"};
}

struct How {
    FileSystem* disk = nullptr;  // file system of disk_rank
    int disk_rank = 0;
    bool stop = false;  // a signal is pending from the start: several ranks end after two steps
    int64_t max_fetched = kMaxNumbersFetched;
    double timeout_s = WorldOptions{}.timeout_s;
    int64_t trace_first = -1, trace_last = -1;
    bool extends = false;  // as in find_resume_point()
};

class RankRunFixture : public RunFixture {
  protected:
    Config config_of(const RunSetup& setup, const Settings& more = {}) const {
        return config(setup.settings(), more);
    }
    std::string path(const std::string& name) const { return (folder_ / "logs" / name).string(); }
    std::string checkpoint(const std::string& name, int64_t step) const {
        return path(name) + "/checkpoints/" + checkpoint_name(step);
    }

    // Runs training as the command line does. Returns the error of a failed save.
    std::string train(const Config& c, int num_ranks, const std::string& name, const std::string& resume = "",
                      const How& how = How()) {
        std::vector<std::string> problems(static_cast<size_t>(num_ranks));
        const std::atomic<int> signal = how.stop ? 1 : 0;
        const auto body = [&](World& threads) {
            const auto network = simulated_network(c.parallel);
            const auto slow = network ? make_simulated_world(threads, *network) : nullptr;
            World& world = slow ? *slow : threads;
            const Ranks ranks = resolve_ranks(c, world);
            Runtime runtime(runtime_options(c, ranks));
            const ResumePoint point = find_resume_point(world, resume, path(name), c, nullptr, how.extends);
            std::optional<InitialWeights> initial;
            if (!point.reader && !c.model.init_from.empty())
                initial = read_initial_weights(world, c, nullptr);
            const std::string out = (folder_ / "logs").string();
            RunFolder run_folder = !ranks.first()   ? RunFolder::silent(path(name))
                                   : point.in_place ? RunFolder::reopen(out, name)
                                                    : RunFolder(out, name);
            Trainer trainer(c, runtime, ranks, run_folder,
                            {.quiet = true,
                             .trace_first = how.trace_first,
                             .trace_last = how.trace_last,
                             .stop_signal = &signal,
                             .resume = point.reader.get(),
                             .initial = initial ? &*initial : nullptr,
                             .origin = initial ? std::optional(initial->origin) : std::nullopt,
                             .file_system = world.rank() == how.disk_rank ? how.disk : nullptr,
                             .max_fetched = how.max_fetched});
            trainer.run();
            problems[static_cast<size_t>(world.rank())] = trainer.problem();
        };
        run_ranks(num_ranks, body, {.timeout_s = how.timeout_s});
        for (const std::string& problem : problems) EXPECT_EQ(problem, problems[0]);
        return problems[0];
    }

    // Returns the training and validation losses in a run's metrics, from this step on.
    std::vector<double> losses(const std::string& name, int64_t first = 0) const {
        std::vector<double> values;
        for (const Json& line : metrics(name))
            if (line["step"].get<int64_t>() >= first) values.push_back(line["loss"]);
        return values;
    }
    static void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                            double tolerance, const std::string& what) {
        ASSERT_EQ(actual.size(), expected.size()) << what;
        for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_NEAR(actual[i], expected[i], tolerance * std::abs(expected[i]))
                << what << ", number " << i;
    }
    // Continues `whole` from its checkpoints of these steps. Losses, norms and the last checkpoint must be equal bitwise.
    void expect_continues(const Config& c, int ranks, const std::string& whole,
                          const std::vector<int>& steps) {
        for (const int step : steps) {
            const std::string later = fmt::format("{}_from{}", whole, step);
            EXPECT_EQ(train(c, ranks, later, checkpoint(whole, step)), "");
            EXPECT_FALSE(curve(whole, step).empty()) << later;
            EXPECT_EQ(curve(later), curve(whole, step)) << later;
            const std::string last = list_checkpoints(path(whole)).front();
            if (last != checkpoint(whole, step))
                expect_same_bytes(last, list_checkpoints(path(later)).front(), ranks);
        }
    }

    static std::string bytes_of(const std::string& file) {
        std::ifstream stream(file, std::ios::binary);
        EXPECT_TRUE(stream) << file;
        return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    }
    // Everything except times must be equal bytewise.
    static void expect_same_bytes(const std::string& a, const std::string& b, int ranks) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
            const std::string file = fmt::format("/{}", rank_file_name(rank));
            EXPECT_EQ(bytes_of(a + file) == bytes_of(b + file), true) << a << " and " << b << file;
        }
        Json one = Json::parse(bytes_of(a + "/checkpoint.json")),
             two = Json::parse(bytes_of(b + "/checkpoint.json"));
        for (Json* const info : {&one, &two}) {
            info->erase("measured");
            // Checkpoint, eval and memory settings do not affect values.
            for (const char* key : {"checkpoint", "memory", "eval"}) (*info)["config"].erase(key);
        }
        EXPECT_EQ(Json::diff(one, two), Json::array()) << a << " and " << b;
    }
    // All values must be equal, in any distribution over files.
    static void expect_same_numbers(const std::string& a, const std::string& b) {
        CheckpointReader one(a);
        ASSERT_EQ(one.info().tensors, CheckpointReader(b).info().tensors);
        for (const CheckpointTensor& tensor : one.info().tensors)
            EXPECT_EQ(tensor_in(a, tensor.name) == tensor_in(b, tensor.name), true)
                << tensor.name << " of " << a << " and " << b;
    }
    // Returns a tensor of a checkpoint; empty if it has none of this name.
    static std::vector<float> tensor_in(const std::string& folder, const std::string& name) {
        CheckpointReader reader(folder);
        reader.index();
        for (const CheckpointTensor& tensor : reader.info().tensors) {
            if (tensor.name != name) continue;
            std::vector<float> values(static_cast<size_t>(tensor.numel()));
            reader.read(name, Box::of({0, tensor.numel()}), values.data());
            return values;
        }
        return {};
    }
    static void expect_good(const std::string& folder, const Config& c) {
        run_ranks(1, [&](World& world) { EXPECT_NO_THROW(open_checkpoint(world, folder, c)) << folder; });
    }
    // --resume of the run with this name is refused, with the same error on all ranks.
    void expect_refused(ExitCode code, const std::string& text, const std::string& resume,
                        const std::string& name, const Config& c, int ranks = 2) const {
        run_ranks(ranks, [&](World& world) {
            expect_error(code, {text}, [&] { find_resume_point(world, resume, path(name), c); });
        });
    }
};

}  // namespace speedrun::testing
