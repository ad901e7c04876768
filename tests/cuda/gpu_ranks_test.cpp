// Several ranks on a real GPU: runs that share it through the staged world against one rank, and NCCL with
// one rank, its maximum per GPU. Every collective runs as a call and captured in a graph.
// build: in gpu_tests
#include "kernels/cuda/cuda_backend.h"

#include <cmath>
#include "kernels/cuda/device/cuda_device.h"
#include "tests/cuda/rank_runs.h"
#include "tests/errors.h"
#include "train/comm/nccl_world.h"
#include "train/comm/self_world.h"

namespace speedrun::testing {
namespace {

class GpuRanksTest : public RankRuns {
  protected:
    Config ranks_config(const std::vector<std::string>& settings) const {
        std::vector<std::string> all = {"batch.microbatch_tokens=256", "batch.tokens_per_step=1024",
                                        "schedule.steps=10", "parallel.communicator=staged"};
        all.insert(all.end(), settings.begin(), settings.end());
        return config(all);
    }
};

// f32: only the order of sums differs. Loss and norm of the first step precede all updates. Ten steps of Muon amplify
// rounding: its polar factor is of a matrix with small singular values, which are little more than rounding errors.
TEST_F(GpuRanksTest, RanksSharingGpuMatchOneRank) {
    const std::vector<double> alone = curve_on_ranks(1, "alone", ranks_config({"precision=f32"}));
    for (const int size : {2, 4}) {
        for (const char* strategy : {"ddp", "zero1"}) {
            const std::string name = fmt::format("{}{}", strategy, size);
            SCOPED_TRACE(name);
            const Config c = ranks_config({"precision=f32", std::string("parallel.strategy=") + strategy});
            const std::vector<double> shared =
                curve_on_ranks(size, name, c, [](const DeviceWorld& device_world, Trainer& trainer) {
                    EXPECT_NE(device_world.world, nullptr);
                    EXPECT_TRUE(trainer.runner().has_graphs());
                });
            ASSERT_EQ(shared.size(), alone.size());
            for (size_t i = 0; i < alone.size(); ++i)
                EXPECT_NEAR(shared[i], alone[i], (i < 2 ? 1e-5 : 2e-3) * std::abs(alone[i])) << i;
            EXPECT_EQ(curve_on_ranks(size, name + "again", c), shared) << "not the same bits again";
        }
    }
}

TEST_F(GpuRanksTest, AutoChoosesStagedOnSharedGpu) {
    if (query_cuda().gpus.size() > 1) GTEST_SKIP() << "every rank has a GPU of its own here";
    curve_on_ranks(2, "auto", ranks_config({"schedule.steps=2", "parallel.communicator=auto"}),
                   [](const DeviceWorld& device_world, Trainer&) {
                       EXPECT_THAT(device_world.note, HasSubstr("not NCCL"));
                   });
}

class GpuNcclTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (const std::string why = nccl_unavailable(); !why.empty())
            GTEST_SKIP() << "NCCL not found: " << why;
        device_ = std::make_unique<CudaDevice>(0, false);
        world_ = make_self_world();
        nccl_ = make_nccl_world(*world_, *device_, {.max_ctas = 4, .timeout_s = 30});
        reduce_ = nccl_->connect("reduce", {{0}, 0});
        gather_ = nccl_->connect("gather", {{0}, 0});
        stream_ = device_->create_stream("reduce");
        for (Buffer* buffer : {&from_, &to_})
            *buffer = Buffer(*device_, "test", MemoryCategory::workspace, kCount * size_of(DType::f32));
        for (int64_t i = 0; i < kCount; ++i) values_.push_back(static_cast<float>(i % 1000) - 500.0f);
    }
    void TearDown() override {
        reduce_.reset();
        gather_.reset();
        nccl_.reset();
    }
    // Contents of `to` after `body`, which starts with the values in `from` and zeros in `to`.
    std::vector<float> result_of(const std::function<void()>& body) {
        std::vector<float> zeros(kCount), result(kCount);
        device_->copy(from_.data(), values_.data(), from_.bytes(), *stream_);
        device_->copy(to_.data(), zeros.data(), to_.bytes(), *stream_);
        body();
        device_->copy(result.data(), to_.data(), to_.bytes(), *stream_);
        stream_->synchronize();
        return result;
    }
    // All collectives in sequence: each passes the values on, unchanged with one rank.
    void enqueue_all() {
        const Tensor from = from_.tensor(DType::f32, {kCount}), to = to_.tensor(DType::f32, {kCount});
        reduce_->all_reduce(from, *stream_);
        reduce_->reduce_scatter(to, from, *stream_);
        reduce_->barrier(*stream_);
        gather_->all_gather(from, to, *stream_);
        gather_->all_to_all(to, from, kAll, *stream_);
        gather_->broadcast(to, 0, *stream_);
    }

    static constexpr int64_t kCount = 100'003;
    inline static const Exchange kAll{{{0, 0, kCount}}, {{0, 0, kCount}}};
    std::unique_ptr<Device> device_;
    std::unique_ptr<World> world_, nccl_;
    std::unique_ptr<Communicator> reduce_, gather_;
    std::unique_ptr<Stream> stream_;
    Buffer from_, to_;
    std::vector<float> values_;
};

TEST_F(GpuNcclTest, EveryCollectiveOfOneRank) {
    EXPECT_EQ(nccl_version().find("2."), 0u) << nccl_version();
    EXPECT_EQ(result_of([&] { enqueue_all(); }), values_);
    int64_t calls = 0;
    for (const auto& communicator : {&reduce_, &gather_})
        for (const CollectiveCount& count : (*communicator)->counts()) calls += count.calls;
    EXPECT_EQ(calls, 6);
    const Tensor halves = from_.tensor(DType::bf16, {kCount});
    reduce_->all_reduce(halves, *stream_);
    stream_->synchronize();
}

TEST_F(GpuNcclTest, CollectivesInGraph) {
    reduce_->barrier(*stream_);  // a capture may not allocate
    stream_->synchronize();
    const auto graph = device_->capture_graph(*stream_, [&] { enqueue_all(); });
    ASSERT_TRUE(graph);
    for (int launch = 0; launch < 3; ++launch)
        EXPECT_EQ(result_of([&] { graph->launch(*stream_); }), values_) << "launch " << launch;
}

}  // namespace
}  // namespace speedrun::testing
