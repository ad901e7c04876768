// Modelled time of matmuls with an epilogue, and the rule that selects our matmul for compute capability 9.0.
// build: release
#include "kernels/ops/epilogue_model.h"

#include <fmt/format.h>

#include "tests/runs/run_fixture.h"
#include "train/engine/step_model.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::epilogue_model_test {

using op::EpilogueKind;

constexpr int64_t kTokens = 32768, kWidth = 768, kHidden = 3072;

// The first matmul of an MLP of the 124M model, with the bytes that op::Traffic counts.
OpCost matmul(EpilogueKind epilogue) {
    OpCost cost;
    cost.op = "matmul";
    cost.product = {{kTokens, kHidden, kWidth}, "nt", epilogue};
    cost.flops = 2 * kTokens * kHidden * kWidth;
    const int64_t c = kTokens * kHidden;
    cost.bytes = 2 * (kTokens * kWidth + kWidth * kHidden + c);
    if (epilogue == EpilogueKind::relu_squared_backward) cost.bytes += 2 * c;
    if (epilogue == EpilogueKind::relu_squared_fp8) cost.bytes += c;
    return cost;
}

TEST(EpilogueModelTest, CostsThePassOrOurMatmul) {
    const GpuModel& h100 = find_gpu_model("h100");
    const auto model = [&](EpilogueKind epilogue, KernelChoice choice, DType type = DType::bf16) {
        return model_call(matmul(epilogue), type, h100, kernel_model("matmul", choice));
    };
    const double gap = h100.launch_gap_us * 1e-3, c = 2.0 * kTokens * kHidden;
    const ModelledCall plain = model(EpilogueKind::none, {});
    const struct {
        EpilogueKind kind;
        const char* pass;
        double bytes;
    } passes[] = {{EpilogueKind::relu_squared, "activation_forward", 2 * c},
                  {EpilogueKind::relu_squared_fp8, "quantize", 2.5 * c},
                  {EpilogueKind::relu_squared_backward, "activation_backward", 3 * c}};
    for (const auto& [kind, pass, bytes] : passes) {
        const double pass_ms = bytes / (h100.bytes_per_s * kernel_model(pass).memory) * 1e3;
        for (const KernelChoice choice : {KernelChoice{}, KernelChoice{.native_matmul = true}}) {
            const ModelledCall with = model(kind, choice), without = model(EpilogueKind::none, choice);
            EXPECT_NEAR(with.ms, without.ms + pass_ms + gap, 1e-9) << pass;
            EXPECT_NEAR(with.gap_ms, without.gap_ms + gap, 1e-12) << pass;
        }
        const ModelledCall ours = model(kind, {.wgmma_matmul = true});
        EXPECT_NEAR(ours.ms, wgmma_matmul_ms(matmul(kind).product, DType::bf16, h100) + gap, 1e-12);
        EXPECT_NEAR(ours.gap_ms, gap, 1e-12);
        EXPECT_LT(ours.ms, plain.ms + pass_ms);
        EXPECT_GT(ours.ms, ours.bound_ms);
        // f32 runs on the library.
        EXPECT_EQ(model(kind, {.wgmma_matmul = true}, DType::f32).ms, model(kind, {}, DType::f32).ms);
    }
    // Without an epilogue the library runs.
    EXPECT_EQ(model(EpilogueKind::none, {.wgmma_matmul = true}).ms, plain.ms);
    EXPECT_GE(model(EpilogueKind::relu_squared_backward, {}).bound_ms, plain.bound_ms);
}

// The library and our matmul read an addend without a pass. The library's matmul hides it if compute takes longer.
TEST(EpilogueModelTest, AddendIsReadByTheMatmul) {
    const GpuModel& h100 = find_gpu_model("h100");
    const auto model = [&](int64_t k, EpilogueKind epilogue, KernelChoice choice) {
        OpCost cost;
        cost.op = "matmul";
        cost.product = {{kTokens, kWidth, k}, "nt", epilogue};
        cost.flops = 2 * kTokens * kWidth * k;
        cost.bytes = 2 * ((kTokens + kWidth) * k + kTokens * kWidth);
        if (epilogue == EpilogueKind::addend) cost.bytes += 2 * kTokens * kWidth;
        return model_call(cost, DType::bf16, h100, kernel_model("matmul", choice));
    };
    constexpr EpilogueKind kNone = EpilogueKind::none, kAddend = EpilogueKind::addend;
    EXPECT_EQ(model(kHidden, kAddend, {}).ms, model(kHidden, kNone, {}).ms);
    const double read_ms = 2.0 * kTokens * kWidth / (h100.bytes_per_s * kernel_model("matmul").memory) * 1e3;
    EXPECT_NEAR(model(kWidth, kAddend, {}).ms, model(kWidth, kNone, {}).ms + read_ms, 1e-9);
    EXPECT_EQ(model(kWidth, kAddend, {}).gap_ms, model(kWidth, kNone, {}).gap_ms);
    // The output matmul of attention is memory-bound: our matmul reaches more of the memory's rate.
    const KernelChoice ours{.wgmma_matmul = true};
    EXPECT_TRUE(wgmma_matmul_wins({{kTokens, kWidth, kWidth}, "nt", kAddend}, DType::bf16));
    EXPECT_FALSE(wgmma_matmul_wins({{kTokens, kWidth, kHidden}, "nt", kAddend}, DType::bf16));
    EXPECT_LT(model(kWidth, kAddend, ours).ms, model(kWidth, kAddend, {}).ms);
    EXPECT_EQ(model(kHidden, kAddend, ours).ms, model(kHidden, kAddend, {}).ms);
}

// The graph adds the stream in the matmul on every GPU and for every shape (GraphWriter::Weight::addend). It is modelled to take less
// time than a norm that reads two tensors and writes their sum.
TEST(EpilogueModelTest, AddendTakesLessThanASumInTheNorm) {
    const auto cost = [](const char* op, double elements, DType type) {
        OpCost result;
        result.op = op;
        result.bytes = static_cast<int64_t>(elements * static_cast<double>(size_of(type)));
        return result;
    };
    for (const GpuModel& gpu : gpu_models()) {
        for (const KernelChoice choice : {KernelChoice{}, KernelChoice{.native_matmul = true},
                                          KernelChoice{.wgmma_matmul = gpu.has_wgmma}}) {
            for (const DType type : {DType::bf16, DType::f32}) {
                for (const int64_t width : {128, 768, 1024, 4096}) {
                    for (const int64_t k : {width, 4 * width}) {
                        const double elements = static_cast<double>(kTokens * width);
                        const auto ms = [&](OpCost of) {
                            return model_call(of, type, gpu, kernel_model(of.op, choice)).ms;
                        };
                        OpCost plain =
                            cost("matmul", static_cast<double>((kTokens + width) * k) + elements, type);
                        plain.product = {{kTokens, width, k}, "nt"};
                        plain.flops = 2 * kTokens * width * k;
                        OpCost added = plain;
                        added.product.epilogue = EpilogueKind::addend;
                        added.bytes += cost("", elements, type).bytes;
                        EXPECT_LT(ms(added) + ms(cost("norm_forward", 2 * elements, type)),
                                  ms(plain) + ms(cost("norm_forward", 4 * elements, type)))
                            << gpu.name << ", " << width << " x " << k;
                        EXPECT_LT(ms(added) + ms(cost("sum_norm_forward", 4 * elements, type)),
                                  ms(plain) + ms(cost("sum_norm_forward", 6 * elements, type)))
                            << gpu.name << ", " << width << " x " << k;
                    }
                }
            }
        }
    }
}

// The idle multiprocessors of the last wave cost more with a longer K, the pass does not.
TEST(EpilogueModelTest, OurMatmulWinsUnlessKIsLong) {
    const auto wins = [](int64_t k, EpilogueKind epilogue, DType operands = DType::bf16) {
        return wgmma_matmul_wins({{kTokens, kHidden, k}, "nt", epilogue}, operands);
    };
    for (const EpilogueKind epilogue :
         {EpilogueKind::relu_squared, EpilogueKind::relu_squared_fp8, EpilogueKind::relu_squared_backward}) {
        EXPECT_TRUE(wins(768, epilogue));
        EXPECT_TRUE(wins(768, epilogue, DType::e4m3));
        EXPECT_FALSE(wins(65536, epilogue));
        EXPECT_FALSE(wins(768, epilogue, DType::f32));
    }
    EXPECT_FALSE(wins(768, EpilogueKind::none));
    // A pass over three tensors pays for a longer K than one over two.
    const auto longest = [&](EpilogueKind epilogue) {
        int64_t k = 768;
        while (wins(k + 128, epilogue)) k += 128;
        return k;
    };
    EXPECT_GT(longest(EpilogueKind::relu_squared_backward), longest(EpilogueKind::relu_squared));
}

// A step of the modern 124M model has no operation for ReLU², and cuda.products "wgmma" shortens it.
TEST(EpilogueModelTest, StepHasNoPassOfReluSquared) {
    const auto step = [](const char* products, const char* gpu = "h100") {
        const Config config = read_config(SPEEDRUN_SOURCE_ROOT "/configs/124m_modern.json",
                                          {fmt::format("cuda.products={}", products)});
        return model_step(config, kAlone, find_gpu_model(gpu));
    };
    const StepModel library = step("library"), ours = step("wgmma");
    double saved_ms = 0;
    int rows = 0;
    for (const ModelledOperation& row : library.operations) {
        EXPECT_NE(row.name.rfind("activation", 0), 0U) << row.name;
        const bool squares = row.name.find("relu_squared") != std::string::npos,
                   muon = row.name.rfind("polar_express", 0) == 0,
                   out = row.name == "matmul 32768x768x768 nt addend";
        for (const ModelledOperation& other : ours.operations) {
            if (other.name != row.name) continue;
            EXPECT_EQ(other.bytes, row.bytes) << row.name;
            saved_ms += row.ms - other.ms;
            if (squares || muon || out) {
                ++rows;
                EXPECT_LT(other.ms, row.ms) << row.name;
            } else {
                EXPECT_EQ(other.ms, row.ms) << row.name;
            }
            if (squares || out) {
                EXPECT_EQ(other.source, kWgmmaMatmulSource);
            }
        }
    }
    EXPECT_EQ(rows, 4);
    EXPECT_NEAR(library.ms - ours.ms, saved_ms, 1e-6);
    EXPECT_EQ(step("wgmma", "a100").ms, step("library", "a100").ms);
}

}  // namespace speedrun::testing::epilogue_model_test
