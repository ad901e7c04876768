// One gradient value on one rank is not finite. A matrix with slices on several ranks must be stepped by all of them
// or by none.
// Covers: train/sharding/read_master.cpp train/sharding/step_statistics.cpp
#include <gtest/gtest.h>

#include <cmath>

#include "tests/distributed/rank_threads.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/sharding/bucket_schedule.h"
#include "train/sharding/read_master.h"

namespace speedrun::testing::refused_step_test {

class RankUnderTest {
  public:
    RankUnderTest(World& world, const Sharing& sharing)
        : ranks_(Mesh({1, world.size(), 1, 1}), sharing, &world),
          parameters_(table_, bucket_rules(ranks_, table_, muon_and_adamw()), runtime_),
          gradients_(table_, parameters_.layout(), runtime_, gradient_memory(ranks_, 1, true)),
          reducer_(ranks_, parameters_, gradients_, runtime_),
          schedule_(muon_and_adamw(), table_, ranks_, {parameters_, gradients_, reducer_, runtime_}) {
        parameters_.initialize(3);
        schedule_.state().reset();
        runtime_.synchronize();
    }

    // bad: a parameter; its last gradient value is NaN on this rank.
    void step(int64_t step, const std::string& bad = "") {
        schedule_.begin_microbatch({.step = step});
        for (auto p = table_.all().rbegin(); p != table_.all().rend(); ++p) {
            schedule_.begin_gradient(*p);
            runtime_.compute().synchronize();  // the gradient buffer is free
            auto* const values = static_cast<float*>(gradients_.flat(*p).data);
            for (int64_t i = 0; i < p->numel(); ++i)
                values[i] = 0.1f + 0.01f * static_cast<float>((i * 7 + p->id) % 13);
            if (p->name == bad) values[p->numel() - 1] = std::nanf("");
            schedule_.grad_ready(*p);
        }
        schedule_.step(*backward_done_, *reduce_done_);
        runtime_.synchronize();
    }
    std::vector<float> master(const std::string& name) {
        const Parameter& p = table_.find(name);
        std::vector<float> values(static_cast<size_t>(p.numel()));
        read_master(p, parameters_, {.reducer = reducer_}, runtime_, values.data());
        return values;
    }

  private:
    Ranks ranks_;
    Runtime runtime_{
        {.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1, .communicates = true}};
    ParameterTable table_ =
        parameters_of(model_of("modern", {.layers = 2, .width = 24, .heads = 2, .vocabulary = 40}), 16);
    ParameterStore parameters_;
    GradientStore gradients_;
    Reducer reducer_;
    BucketSchedule schedule_;
    std::unique_ptr<Event> backward_done_ = runtime_.device().create_event(),
                           reduce_done_ = runtime_.device().create_event();
};

TEST(RefusedStepTest, NonFiniteSliceSkipsWholeMatrix) {
    const std::string bad = "blocks.1.mlp.up.weight";
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        for (const OptimizerStep when : {OptimizerStep::after_backward, OptimizerStep::in_backward}) {
            run_ranks(3, [&](World& world) {
                RankUnderTest rank(world, {.strategy = strategy, .optimizer_step = when});
                const std::vector<float> start = rank.master(bad);
                rank.step(0);
                const std::vector<float> before = rank.master(bad);
                EXPECT_NE(before, start) << word_of(strategy);
                rank.step(1, world.rank() == 0 ? bad : "");
                EXPECT_EQ(rank.master(bad), before) << word_of(strategy) << " rank " << world.rank();
            });
        }
    }
}

}  // namespace speedrun::testing::refused_step_test
