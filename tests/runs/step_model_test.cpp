// A modelled step: its counts equal a real step's, and its times follow the models of GPU and kernels.
// build: release
// Covers: kernels/ops/gpu_models.cpp train/commands/plan_gpu.cpp train/engine/measured_kernels.cpp
#include "train/engine/step_model.h"
#include "tests/errors.h"

#include <chrono>
#include <map>

#include "tests/runs/run_fixture.h"
#include "tests/train/small_model.h"
#include "train/engine/step_bench.h"
#include "train/runlog/environment.h"
#include "train/sharding/resolve_ranks.h"
#include "train/timeline/step_timeline.h"

namespace speedrun::testing::step_model_test {

struct Counts {
    double calls, flops, bytes;
    bool operator==(const Counts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& c) {
    return out << c.calls << " calls, " << c.flops << " FLOPs, " << c.bytes << " bytes";
}

template <class Row>
std::map<std::string, Counts> counts_of(const std::vector<Row>& rows) {
    std::map<std::string, Counts> counts;
    for (const Row& row : rows) counts[row.name] = {row.calls, row.flops, row.bytes};
    return counts;
}

OpCost cost_of(const char* op, std::array<int64_t, 3> product, int64_t flops, int64_t bytes) {
    OpCost cost;
    cost.op = op;
    cost.product.sizes = product;
    cost.flops = flops;
    cost.bytes = bytes;
    return cost;
}

class StepModelTest : public RunFixture {
  protected:
    static StepModel model(const Config& config, const char* gpu = "h100") {
        return model_step(config, kAlone, find_gpu_model(gpu));
    }
    // Counts of real steps of this process, recorded by MeteredOps.
    static std::map<std::string, Counts> run_counts(const Config& config) {
        Runtime runtime(runtime_options(config));
        StepBenchOptions options;
        options.steps = 1;
        options.warmup = 0;
        options.peaks = {128, 1 << 20};
        return counts_of(bench_steps(config, runtime, kAlone, options).profile.operations);
    }
};

TEST_F(StepModelTest, CountsMatchRun) {
    const std::vector<std::vector<std::string>> variants = {
        {"batch.tokens_per_step=1024"},
        {"precision=bf16", "memory.logits_at_once=4096"},  // chunks of 64 rows
        together({{kMix}, with_tables({.values = 1, .max_ngram = 2})}),
        {"model.preset=gpt2", "optimizers.groups=[{\"type\": \"adamw\", \"params\": [\"*\"]}]"},
        {"memory.activation_checkpointing=full", "optimizers.groups.0.normuon=true"},
        {"optimizers.groups.0.every=2", "optimizers.clip=1"},
    };
    for (std::vector<std::string> settings : variants) {
        SCOPED_TRACE(settings.front());
        settings.emplace_back("threads=1");
        const Config c = config(settings);
        const auto modelled = counts_of(model(c).operations), counted = run_counts(c);
        EXPECT_EQ(modelled.size(), counted.size());
        for (const auto& [name, counts] : counted) {
            ASSERT_TRUE(modelled.count(name)) << name;
            EXPECT_EQ(modelled.at(name), counts) << name;
        }
    }
}

// On a GPU; on a CPU, 2^26 logits would be 1,024 rows of this vocabulary.
TEST_F(StepModelTest, HeadProcessesWholeMicrobatch) {
    const auto calls = [&](std::vector<std::string> more) {
        more.insert(more.end(),
                    {"model.vocab_size=50304", "batch.microbatch_tokens=4096", "batch.tokens_per_step=8192"});
        const Config c = config(more);
        EXPECT_EQ(c.memory.logits_on(DeviceKind::cpu),
                  c.memory.logits_at_once > 0 ? c.memory.logits_at_once : 1 << 26);
        return counts_of(model(c).operations).at("cross_entropy").calls;
    };
    EXPECT_EQ(calls({}), 2);
    EXPECT_EQ(calls({"memory.logits_at_once=67108864"}), 8);
}

TEST_F(StepModelTest, TotalsRowsAndSortsByLostTime) {
    const StepModel m = model(config({"batch.tokens_per_step=1024"}));
    EXPECT_EQ(m.microbatches, 2);
    EXPECT_EQ(m.compute_dtype, DType::f32);
    double ms = 0, bound_ms = 0, calls = 0, last = std::numeric_limits<double>::max();
    for (const ModelledOperation& row : m.operations) {
        ms += row.ms;
        bound_ms += row.bound_ms;
        calls += row.calls;
        EXPECT_GT(row.bound_ms, 0) << row.name;
        EXPECT_LE(row.lost_ms(), last) << row.name;
        EXPECT_TRUE(row.source.starts_with("assumed") || row.source.starts_with("measured on an H100"))
            << row.name << ": " << row.source;
        last = row.lost_ms();
    }
    EXPECT_DOUBLE_EQ(ms, m.ms);
    EXPECT_DOUBLE_EQ(bound_ms, m.bound_ms);
    EXPECT_GE(m.gap_ms, calls * find_gpu_model("h100").launch_gap_us * 1e-3 * 0.999);
    EXPECT_LT(m.gap_ms, m.ms);
}

TEST_F(StepModelTest, FollowsConfigAndGpu) {
    const Config c = config({"precision=auto"});
    const StepModel h100 = model(c);
    EXPECT_EQ(h100.compute_dtype, DType::bf16);
    EXPECT_LE(model(c, "h200").ms, h100.ms);
    EXPECT_GT(model(c, "a100").bound_ms, h100.bound_ms);
    EXPECT_GT(model(c, "4090").bound_ms, model(c, "a100").bound_ms);
    const StepModel twice = model(config({"precision=auto", "batch.tokens_per_step=1024"}));
    EXPECT_GT(twice.ms, h100.ms);
    EXPECT_LT(twice.ms, 2 * h100.ms);  // the optimizer steps once
    const Ranks two = plan_ranks(config({"batch.tokens_per_step=1024", "parallel.strategy=zero1"}), 2);
    const StepModel one_of_two =
        model_step(config({"precision=auto", "batch.tokens_per_step=1024", "parallel.strategy=zero1"}), two,
                   find_gpu_model("h100"));
    EXPECT_EQ(one_of_two.microbatches, 1);
    EXPECT_LT(one_of_two.ms, twice.ms);
}

TEST_F(StepModelTest, ReportReplacesAssumedEfficiencies) {
    const std::string path = (folder_ / "ops.jsonl").string();
    std::ofstream(path) << R"({"kind":"ceilings","dtype":"bf16","gb_per_s":1500,"tflops":399}
{"kind":"op","name":"a","op":"add","dtype":"bf16","status":"passed","flops":0,"bytes":1000,"share_of_floor":0.5}
{"kind":"op","name":"a","op":"add","dtype":"bf16","status":"passed","flops":0,"bytes":1000,"share_of_floor":0.25}
{"kind":"op","name":"b","op":"add","dtype":"bf16","status":"passed","flops":0,"bytes":9000000,"share_of_floor":0.9}
{"kind":"op","name":"f","op":"fill","dtype":"bf16","status":"failed","failure":"no"}
{"kind":"op","name":"m","op":"matmul","dtype":"bf16","status":"passed","products":"hand","flops":9,"bytes":9,"share_of_floor":0.1}
{"kind":"op","name":"c","op":"attention_forward","dtype":"bf16","status":"passed","attention":"cudnn","flops":9,"bytes":9,"share_of_floor":0.1}
{"kind":"op","name":"w","op":"attention_forward","dtype":"bf16","status":"passed","attention":"wgmma","flops":9,"bytes":9,"share_of_floor":0.6}
{"kind":"op","name":"z","op":"scale","dtype":"f32","status":"passed","flops":0,"bytes":9,"share_of_floor":0.1}
{"kind":"op","na)";
    const MeasuredKernels measured(path, DType::bf16, {});
    const GpuModel gpu = measured.with_rates(find_gpu_model("h100"));
    EXPECT_DOUBLE_EQ(gpu.bytes_per_s, 1.5e12);
    EXPECT_DOUBLE_EQ(gpu.bf16_flops_per_s, 399e12);
    EXPECT_DOUBLE_EQ(gpu.f32_flops_per_s, find_gpu_model("h100").f32_flops_per_s);
    OpCost add;
    add.op = "add";
    add.bytes = 2000;
    ASSERT_TRUE(measured.nearest(add));
    EXPECT_EQ(measured.nearest(add)->share_of_bound, 0.25);
    add.bytes = 8000000;
    EXPECT_EQ(measured.nearest(add)->name, "b");
    for (const char* other : {"fill", "matmul", "attention_forward", "scale"}) {
        OpCost cost;
        cost.op = other;
        EXPECT_EQ(measured.nearest(cost), nullptr) << other;
    }
    const MeasuredKernels by_wgmma(path, DType::bf16, {.wgmma_attention = true});
    ASSERT_TRUE(by_wgmma.nearest(cost_of("attention_forward", {}, 9, 9)));
    EXPECT_EQ(by_wgmma.nearest(cost_of("attention_forward", {}, 9, 9))->name, "w");
    const Config c = config({"precision=bf16", kMix});
    const StepModel assumed = model_step(c, kAlone, gpu), with = model_step(c, kAlone, gpu, &measured);
    EXPECT_DOUBLE_EQ(assumed.bound_ms, with.bound_ms);
    for (const ModelledOperation& row : with.operations)
        EXPECT_EQ(row.source.find("measured: ") == 0, row.name == "add") << row.name << ": " << row.source;
    EXPECT_NE(assumed.ms, with.ms);
    EXPECT_THROW(MeasuredKernels(path + ".no", DType::bf16, {}), Error);
    std::ofstream(path) << "\n";
    EXPECT_THROW(MeasuredKernels(path, DType::bf16, {}), Error);
}

// Shapes name both widths of a head only where they differ.
TEST_F(StepModelTest, ReportMatchesBothWidthsOfHeads) {
    const std::string path = (folder_ / "ops.jsonl").string();
    std::ofstream(path)
        << R"({"kind":"op","name":"one","op":"attention_forward","shape":"T4096 S512 6x64, 256 keys","dtype":"bf16","status":"passed","flops":9,"bytes":9,"share_of_floor":0.1}
{"kind":"op","name":"two","op":"attention_forward","shape":"T4096 S512 6x64/128, 256 keys","dtype":"bf16","status":"passed","flops":9,"bytes":9,"share_of_floor":0.1}
{"kind":"op","name":"bad","op":"attention_forward","shape":"T4096 S512 6x64/, 256 keys","dtype":"bf16","status":"passed","flops":9,"bytes":9,"share_of_floor":0.1}
)";
    const MeasuredKernels measured(path, DType::bf16, {});
    for (const int64_t value_dim : {64, 128}) {
        OpCost cost = cost_of("attention_forward", {}, 9, 9);
        cost.attention = {8, 512, 512, 6, 64, value_dim, 0, false};
        const MeasuredKernels::Case* const found = measured.nearest(cost);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->name, value_dim == 64 ? "one" : "two");
        EXPECT_EQ(found->cost.attention, cost.attention);
    }
}

TEST_F(StepModelTest, WgmmaNeedsHopperAndBf16) {
    const auto chosen = [&](const char* precision, const char* gpu) {
        const Config c = config({std::string("precision=") + precision, "cuda.attention=wgmma"});
        return kernel_choice(c, find_gpu_model(gpu)).wgmma_attention;
    };
    EXPECT_TRUE(chosen("bf16", "h100"));
    EXPECT_TRUE(chosen("bf16", "h200"));
    EXPECT_FALSE(chosen("f32", "h100"));
    EXPECT_FALSE(chosen("bf16", "a100"));
    // The modern 124M at full size: the figures of docs/step-time.md and docs/gpus.md.
    const auto ms = [](const std::string& attention, const std::string& products = "library") {
        const Config modern = read_config(SPEEDRUN_SOURCE_ROOT "/configs/124m_modern.json",
                                          {"cuda.attention=" + attention, "cuda.products=" + products});
        const StepModel step = model_step(modern, kAlone, find_gpu_model("h100"));
        return step.ms / static_cast<double>(step.microbatches);
    };
    EXPECT_NEAR(ms("hand"), 61.95, 0.1);
    EXPECT_NEAR(ms("wgmma"), 53.8, 0.1);
    EXPECT_NEAR(ms("wgmma", "wgmma"), 49.05, 0.1);
}

// A stored report, one JSON object, is equivalent to its lines.
TEST_F(StepModelTest, ReadsStoredReport) {
    const std::string path = (folder_ / "gpu_check.json").string();
    std::ofstream(path) << R"({"result": "passed",
 "ceilings": [{"kind": "ceilings", "dtype": "bf16", "gb_per_s": 1500, "tflops": 399}],
 "ops": [{"kind": "op", "name": "a", "op": "add", "dtype": "bf16", "status": "passed", "flops": 0, "bytes": 1000,
          "share_of_floor": 0.25}, 5]})";
    const MeasuredKernels measured(path, DType::bf16, {});
    EXPECT_DOUBLE_EQ(measured.with_rates(find_gpu_model("h100")).bytes_per_s, 1.5e12);
    ASSERT_TRUE(measured.nearest(cost_of("add", {}, 0, 1000)));
    EXPECT_EQ(measured.nearest(cost_of("add", {}, 0, 1000))->share_of_bound, 0.25);
    for (const char* text : {R"({"ops": []})", R"({"ops": 5})", R"({"ops": [[]], "ceilings": {}})"}) {
        std::ofstream(path) << text;
        EXPECT_THROW(MeasuredKernels(path, DType::bf16, {}), Error) << text;
    }
}

TEST(GpuModelTest, ModelsEveryOperationWithValidEfficiency) {
    for (const std::string& op : all_operations()) {
        const KernelModel kernel = kernel_model(op);
        EXPECT_EQ(op, kernel.op);
        for (const double share : {kernel.compute, kernel.memory}) {
            EXPECT_GT(share, 0) << op;
            EXPECT_LE(share, 1) << op;
        }
        EXPECT_GE(kernel.launches, 1) << op;
    }
    EXPECT_THROW(kernel_model("frobnicate"), Error);
    EXPECT_NE(kernel_model("matmul", {.native_matmul = true}).engine, kernel_model("matmul").engine);
    for (const GpuModel& gpu : gpu_models()) {
        EXPECT_EQ(&find_gpu_model(gpu.name), &gpu);
        EXPECT_GT(gpu.bf16_flops_per_s, gpu.f32_flops_per_s) << gpu.name;
        EXPECT_LE(gpu.mma_share, 1) << gpu.name;
    }
    expect_error(ExitCode::usage, {"h100, h200, a100, 4090, b200, 5090"}, [&] { find_gpu_model("h1000"); });
}

TEST(GpuModelTest, PredictsCallTime) {
    const GpuModel& gpu = find_gpu_model("h100");
    const auto model = [&](const OpCost& cost, bool native = false) {
        return model_call(cost, DType::bf16, gpu, kernel_model(cost.op, {.native_matmul = native}));
    };
    const double gap = gpu.launch_gap_us * 1e-3;
    // 3 GB of memory traffic take a millisecond at full bandwidth; the model adds the share and one gap.
    const ModelledCall add = model(cost_of("add", {}, 0, 3000000000));
    EXPECT_DOUBLE_EQ(add.bound_ms, 1);
    EXPECT_FALSE(add.compute_bound);
    EXPECT_DOUBLE_EQ(add.ms, 1 / kernel_model("add").memory + gap);
    EXPECT_GT(model(cost_of("add", {}, 0, 3000000001)).ms, add.ms);
    // Library matmuls reach a share of the rate for any shape, plus the kernel that clears its counters.
    const ModelledCall product = model(cost_of("matmul", {100, 100, 100}, 798000000000, 1));
    EXPECT_DOUBLE_EQ(product.bound_ms, 1);
    EXPECT_TRUE(product.compute_bound);
    EXPECT_DOUBLE_EQ(product.ms, 1 / kernel_model("matmul").compute + 2 * gap);
    // Our own matmuls run in whole waves: 132 blocks of 128 x 128 take the time of one, 133 twice that.
    const auto native_ms = [&](int64_t tiles) {
        return model(cost_of("matmul", {128, 128 * tiles, 4096}, 1, 1), true).ms - gap;
    };
    EXPECT_DOUBLE_EQ(native_ms(1), native_ms(132));
    EXPECT_DOUBLE_EQ(native_ms(133), 2 * native_ms(132));
    EXPECT_NEAR(native_ms(132) * 1e-3,
                2.0 * 128 * 128 * 132 * 4096 /
                    (798e12 * gpu.mma_share * kernel_model("matmul", {.native_matmul = true}).compute),
                1e-12);
    // Twelve matrices of 768 x 768 have 252 tiles of a triangle: two waves of 132; one matrix is one wave of 21.
    const auto polar_express = [](std::vector<op::ProductShape> batches) {
        OpCost cost = cost_of("polar_express", {}, 1, 1);
        cost.batches = std::move(batches);
        return cost;
    };
    const double one = model(polar_express({{{1, 768, 768}}})).ms,
                 twelve = model(polar_express({{{12, 768, 768}}})).ms;
    EXPECT_GT(twelve, 2 * one);
    EXPECT_LT(twelve, 4 * one);
    EXPECT_NEAR(model(polar_express({{{12, 768, 768}}, {{1, 768, 768}}})).ms, one + twelve, 1e-9);
    // With wgmma, a triangle of 768 x 768 has 12 tiles of 128 x 256, and the update 18. 11 matrices take one wave, one and two. Two
    // batches of one side share the launch of A·A.
    const KernelModel by_wgmma = kernel_model("polar_express", {.wgmma_matmul = true});
    const auto waves = [&](std::vector<op::ProductShape> batches) {
        const ModelledCall call = model_call(polar_express(std::move(batches)), DType::bf16, gpu, by_wgmma);
        const double wave = 2.0 * 128 * 256 * 768 * 132 / (798e12 * by_wgmma.compute) * 1e3;
        return (call.ms - call.gap_ms) / (5 * wave);
    };
    EXPECT_NEAR(waves({{{11, 768, 768}}}), 1 + 1 + 2, 1e-9);
    EXPECT_NEAR(waves({{{12, 768, 768}}}), 2 + 2 + 2, 1e-9);
    EXPECT_NEAR(waves({{{5, 768, 768}}, {{5, 768, 1536}}}), 1 + 2 + 1 + 1 + 2, 1e-9);
    // Attention by wgmma at a share of the matmul peak.
    const KernelChoice wgmma{.wgmma_attention = true};
    const double share = kernel_model("attention_forward", wgmma).compute;
    EXPECT_DOUBLE_EQ(model_call(cost_of("attention_forward", {}, 798000000000, 1), DType::bf16, gpu,
                                kernel_model("attention_forward", wgmma))
                         .ms,
                     1 / share + gap);
    EXPECT_STREQ(kernel_model("add", wgmma).source, kernel_model("add").source);
    // In f32 the mma.sync models do not apply.
    EXPECT_DOUBLE_EQ(model_call(cost_of("attention_forward", {}, 1000000000, 1), DType::f32, gpu,
                                kernel_model("attention_forward"))
                         .ms,
                     1e9 / (gpu.f32_flops_per_s * kernel_model("attention_forward").compute) * 1e3 + gap);
}

// Limits of `plan --timeline` for 124M on 1,024 ranks: 10 s and 2 GiB. It takes a hundredth of both.
TEST(StepTimelineRunTest, PlansThousandRanksWithinLimits) {
    constexpr int kRanks = 1024;
    const Config config = read_config(SPEEDRUN_SOURCE_ROOT "/configs/124m_modern.json",
                                      {fmt::format("batch.tokens_per_step={}", 32768 * kRanks)});
    const int64_t rss = current_rss_bytes();
    const auto begin = std::chrono::steady_clock::now();
    const PredictedStep step = predict_gpu_step(config, plan_ranks(config, kRanks), find_gpu_model("h100"),
                                                nullptr, default_network());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 10);
    EXPECT_LT(current_rss_bytes() - rss, int64_t{2} << 30);
    EXPECT_GT(step.timeline.exposed_ms, 0);
    EXPECT_GT(step.timeline.step_ms, step.timeline.compute_ms);
}

}  // namespace speedrun::testing::step_model_test
