// Runs that exchange tables' gradients as rows, stopped and continued.
#include <cmath>

#include "tests/distributed/rank_threads.h"
#include "tests/runs/run_fixture.h"
#include "tests/train/small_model.h"
#include "train/checkpoint/resume.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing {
namespace rows_resume_test {

class RowsResumeTest : public RunFixture {
  protected:
    // Ten steps of two microbatches on each of two ranks; tables are stepped every two steps.
    Config config_by(TableExchange exchange, const std::string& every) const {
        Config c = config(together(
            {{"schedule.steps=10", "model.layers.count=1", "batch.tokens_per_step=256",
              "batch.microbatch_tokens=64", "threads=1", "device=cpu", "eval.every=5", "data.val_tokens=300",
              "checkpoint.keep=100", "checkpoint.every=" + every, "optimizers.groups.1.every=2",
              "parallel.strategy=zero1", "parallel.bucket_bytes=4096"},
             with_tables({.max_ngram = 3, .ngram_rows = 400})}));
        for (auto& [name, table] : c.model.parts.tables) table.exchange = exchange;
        return parse_config(config_to_json(c), "resolved", {});
    }
    std::string path(const std::string& name) const { return (folder_ / "logs" / name).string(); }

    void train(const Config& c, const std::string& name, const std::string& resume = "") {
        run_ranks(2, [&](World& world) {
            const Ranks ranks = resolve_ranks(c, world);
            Runtime runtime(runtime_options(c, ranks));
            const ResumePoint point = find_resume_point(world, resume, path(name), c);
            RunFolder folder =
                ranks.first() ? RunFolder((folder_ / "logs").string(), name) : RunFolder::silent(path(name));
            Trainer trainer(c, runtime, ranks, folder,
                            {.quiet = true, .warm_up = false, .resume = point.reader.get()});
            trainer.run();
        });
    }
};

// The exchange mode does not affect results: a run may be continued with the other one.
TEST_F(RowsResumeTest, GoOnBitwiseEitherWay) {
    train(config_by(TableExchange::rows, "4"), "rows");
    const std::vector<double> expected = curve("rows", 4);
    ASSERT_EQ(expected.size(), 6u * 2 + 2);
    for (const TableExchange exchange : {TableExchange::rows, TableExchange::whole}) {
        const std::string name = std::string("later_") + word_of(exchange);
        train(config_by(exchange, "0"), name, path("rows") + "/checkpoints/" + checkpoint_name(4));
        EXPECT_EQ(curve(name), expected) << name;
    }
}

}  // namespace rows_resume_test
}  // namespace speedrun::testing
