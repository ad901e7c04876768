// Runs that are stopped and continued as by the command line, on ranks that are threads.
#pragma once

#include <atomic>
#include <iterator>

#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "tests/runs/run_fixture.h"
#include "tests/sanitized.h"
#include "train/checkpoint/resume.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing {

using Settings = std::vector<std::string>;

struct Ways {
    int ranks = 1, replicate = 1;
    const char* strategy = "ddp";
    const char* optimizer =
        "adamw";  // for matrices; "normuon": muon with normuon; "heads": also a matrix per head
    const char* precision = "f32";
    int microbatch_tokens = 64;  // tokens per rank and microbatch; a step has 256

    std::vector<std::string> settings() const {
        const std::string type = std::string(optimizer) == "adamw" ? "adamw" : "muon";
        const bool heads = std::string(optimizer) == "heads",
                   normuon = heads || std::string(optimizer) == "normuon";
        return {"schedule.steps=10", "model.layers.count=1", "batch.tokens_per_step=256", "device=cpu",
                "threads=1", "eval.every=5", "checkpoint.keep=100", "data.val_tokens=300",
                "precision=" + std::string(precision), "parallel.strategy=" + std::string(strategy),
                "parallel.replicate=" + std::to_string(replicate),
                "batch.microbatch_tokens=" + std::to_string(microbatch_tokens),
                "optimizers.groups.0.type=" + type,
                std::string("optimizers.groups.0.normuon=") + (normuon ? "true" : "false"),
                // Matrices of 16 and of 32 rows have different numbers of lines in one parameter.
                std::string("optimizers.groups.0.normuon_lines=") + (heads ? "rows" : "auto"),
                std::string("optimizers.groups.0.heads_per_matrix=") + (heads ? "1" : "0")};
    }
};

class ResumeFixture : public RunFixture {
  protected:
    Config config_of(const Ways& ways, const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all = ways.settings();
        all.insert(all.end(), more.begin(), more.end());
        return config(all);
    }
    std::string path(const std::string& name) const { return (folder_ / "logs" / name).string(); }
    std::string checkpoint(const std::string& name, int64_t step) const {
        return path(name) + "/checkpoints/" + checkpoint_name(step);
    }

    // Runs `body` on every rank.
    static void as_ranks(int ranks, const std::function<void(World&)>& body,
                         const WorldOptions& options = {}) {
        run_ranks(ranks, body, options);
    }

    struct How {
        FileSystem* disk = nullptr;  // file system of disk_rank
        int disk_rank = 0;
        bool stop = false;  // a signal is pending from the start: several ranks end after two steps
        int64_t most_fetched = kMostNumbersFetched;
        double timeout_s = WorldOptions{}.timeout_s;
    };
    // Runs training as the command line does. Returns the error of a failed save.
    std::string train(const Config& c, int num_ranks, const std::string& name, const std::string& resume = "",
                      FileSystem* disk = nullptr, int disk_rank = 0) {
        return train(c, num_ranks, name, resume, How{.disk = disk, .disk_rank = disk_rank});
    }
    std::string train(const Config& c, int num_ranks, const std::string& name, const std::string& resume,
                      const How& how) {
        std::vector<std::string> problems(static_cast<size_t>(num_ranks));
        const std::atomic<int> signal = how.stop ? 1 : 0;
        const auto body = [&](World& world) {
            const Ranks ranks = resolve_ranks(c, world);
            Runtime runtime(runtime_options(c, ranks));
            const ResumePoint point = find_resume_point(world, resume, path(name), c);
            const std::string out = (folder_ / "logs").string();
            RunFolder run_folder = !ranks.first()   ? RunFolder::silent(path(name))
                                   : point.in_place ? RunFolder::reopen(out, name)
                                                    : RunFolder(out, name);
            Trainer trainer(c, runtime, ranks, run_folder,
                            {.quiet = true,
                             .warm_up = false,
                             .stop_signal = &signal,
                             .resume = point.reader.get(),
                             .file_system = world.rank() == how.disk_rank ? how.disk : nullptr,
                             .most_fetched = how.most_fetched});
            trainer.run();
            problems[static_cast<size_t>(world.rank())] = trainer.problem();
        };
        as_ranks(num_ranks, body, {.timeout_s = how.timeout_s});
        for (const std::string& problem : problems) EXPECT_EQ(problem, problems[0]);
        return problems[0];
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
        one.erase("measured");
        two.erase("measured");
        // Checkpoint, eval and memory settings do not affect values.
        for (const char* key : {"checkpoint", "memory", "eval"}) {
            one["config"].erase(key);
            two["config"].erase(key);
        }
        EXPECT_EQ(Json::diff(one, two), Json::array()) << a << " and " << b;
    }
    // All values must be equal, in any distribution over files.
    static void expect_same_numbers(const std::string& a, const std::string& b) {
        CheckpointReader one(a), two(b);
        one.index();
        two.index();
        ASSERT_EQ(one.info().tensors, two.info().tensors);
        for (const CheckpointTensor& tensor : one.info().tensors) {
            std::vector<float> x(static_cast<size_t>(tensor.numel())), y(x.size());
            one.read(tensor.name, Box::of({0, tensor.numel()}), x.data());
            two.read(tensor.name, Box::of({0, tensor.numel()}), y.data());
            EXPECT_EQ(x == y, true) << tensor.name << " of " << a << " and " << b;
        }
    }
    static void expect_good(const std::string& folder, const Config& c) {
        as_ranks(1, [&](World& world) { EXPECT_NO_THROW(open_checkpoint(world, folder, c)) << folder; });
    }
    // --resume of the run with this name is refused, with the same error on all ranks.
    void expect_error(ExitCode code, const std::string& text, const std::string& resume,
                      const std::string& name, const Config& c, int ranks = 2) const {
        as_ranks(ranks, [&](World& world) {
            try {
                find_resume_point(world, resume, path(name), c);
                ADD_FAILURE() << "no error; expected " << text;
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), code) << error.what();
                EXPECT_THAT(error.what(), HasSubstr(text));
            }
        });
    }
};

}  // namespace speedrun::testing
