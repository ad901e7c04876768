// Whole runs on several ranks that are threads of this process, each with its own device; on one GPU they
// share it.
#pragma once

#include <mutex>

#include "tests/distributed/rank_threads.h"
#include "tests/runs/run_fixture.h"
#include "train/comm/device_world.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing {

class RankRuns : public RunFixture {
  protected:
    // Returns the curve that rank 0 has written. `look` is called on every rank before the run begins, and
    // `after` when it has ended, one rank at a time.
    std::vector<double> curve_on_ranks(
        int size, const std::string& name, const Config& config,
        const std::function<void(const DeviceWorld&, Trainer&)>& look = [](const DeviceWorld&, Trainer&) {},
        const std::function<void(Trainer&)>& after = [](Trainer&) {}) {
        const std::string path = (folder_ / "logs" / name).string();
        std::mutex mutex;
        run_ranks(size, [&](World& world) {
            Ranks ranks = resolve_ranks(config, world);
            Runtime runtime(runtime_options(config, ranks));
            const DeviceWorld device_world = make_device_world(world, runtime.device(), config.parallel);
            if (device_world.world) ranks = ranks.with_world(*device_world.world);
            RunFolder run_folder =
                ranks.first() ? RunFolder((folder_ / "logs").string(), name) : RunFolder::silent(path);
            Trainer trainer(config, runtime, ranks, run_folder, {.quiet = true});
            {
                std::lock_guard lock(mutex);
                look(device_world, trainer);
            }
            const RunSummary summary = trainer.run();
            EXPECT_EQ(summary.ranks, size);
            std::lock_guard lock(mutex);
            after(trainer);
        });
        return curve(name);
    }
};

}  // namespace speedrun::testing
