// Arguments of losses, optimizers and utilities that do not fit.
#include "tests/kernels/adamw_numbers.h"
#include "tests/kernels/op_checks.h"

namespace speedrun::testing::step_checks_test {

SPEEDRUN_CHECKS_TEST(StepChecksTest);

TEST_P(StepChecksTest, CrossEntropy) {
    const Changed<op::CrossEntropy> refused{
        {.losses = f32({4}), .logits = real({4, 48}), .targets = i32({4}), .vocab_size = 48}};
    refused({"losses", "[4]", "[3]"}, [](auto& a) { a.losses = f32({3}); });
    refused({"49", "48"}, [](auto& a) { a.vocab_size = 49; });
    refused({"dlogits", "[4,48]", "[4,47]"}, [](auto& a) { a.dlogits = real({4, 47}); });
    const auto several = [&](int64_t targets, int64_t weights, const std::vector<std::string>& parts) {
        refused(parts, [=](auto& a) {
            a.targets = i32({targets, 4});
            a.weights = f32({weights});
        });
    };
    several(2, 3, {"targets", "[3,4]", "[2,4]"});
    several(9, 9, {"9 targets", "at most 8"});
    const auto fp8 = [](int64_t rows, int64_t columns) {
        return op::CrossEntropy{.losses = f32({rows}),
                                .dlogits = make(DType::e5m2, {rows, columns}),
                                .transposed = make(DType::e5m2, {columns, rows}),
                                .scale = f32({1}),
                                .logits = real({rows, columns}),
                                .targets = i32({rows}),
                                .vocab_size = columns};
    };
    refuse(fp8(16, 40), {"units of 16", "[16,40]"});
    refuse(fp8(24, 48), {"units of 16", "[48,24]"});
    const Changed<op::CrossEntropy> of_fp8{fp8(16, 48)};
    of_fp8({"dlogits", "e5m2", "e4m3"}, [](auto& a) { a.dlogits = make(DType::e4m3, {16, 48}); });
    of_fp8({"scale", "[1]", "[2]"}, [](auto& a) { a.scale = f32({2}); });
    of_fp8({"transposed", "[48,16]", "[48,32]"}, [](auto& a) { a.transposed = make(DType::e5m2, {48, 32}); });
}

TEST_P(StepChecksTest, CrossEntropyParts) {
    const Changed<op::CrossEntropyPart> part{{.part = f32({4, 2}),
                                              .logits = real({4, 48}),
                                              .targets = i32({4}),
                                              .first = 0,
                                              .vocab_size = 48,
                                              .whole_vocab_size = 96}};
    part({"part", "[4,2]", "[3,2]"}, [](auto& a) { a.part = f32({3, 2}); });
    for (const auto& [first, vocab_size] : {std::pair{0, 49}, {0, -1}, {-1, 48}, {49, 48}})
        part({fmt::format("{} ids from {} on, of 96", vocab_size, first), "48"},
             [&, first = first, vocab_size = vocab_size](auto& a) {
                 a.first = first;
                 a.vocab_size = vocab_size;
             });
    const Changed<op::CrossEntropyOfParts> of_parts{{.losses = f32({4}),
                                                     .dlogits = real({4, 48}),
                                                     .logits = real({4, 48}),
                                                     .parts = f32({8, 2}),
                                                     .targets = i32({4}),
                                                     .first = 48,
                                                     .vocab_size = 48,
                                                     .whole_vocab_size = 96}};
    of_parts({"losses", "[4]", "[3]"}, [](auto& a) { a.losses = f32({3}); });
    of_parts({"parts", "[7,2]", "4 rows"}, [](auto& a) { a.parts = f32({7, 2}); });
    of_parts({"parts", "[0,2]", "4 rows"}, [](auto& a) { a.parts = f32({0, 2}); });
    of_parts({"parts", "[8,2]", "[8,3]"}, [](auto& a) { a.parts = f32({8, 3}); });
    of_parts({"dlogits", "[4,48]", "[4,47]"}, [](auto& a) { a.dlogits = real({4, 47}); });
}

TEST_P(StepChecksTest, Optimizers) {
    const Changed<op::AdamwStep> of_adamw{{.parameter = real({33}),
                                           .master = f32({33}),
                                           .first_moment = f32({33}),
                                           .second_moment = f32({33}),
                                           .grad = f32({33}),
                                           .grad_scale = f32({1}),
                                           .rates = f32({3}),
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .epsilon = 1e-8f}};
    of_adamw({"rates", "[3]", "[2]"}, [](auto& a) { a.rates = f32({2}); });
    of_adamw({"[33]", "[32]"}, [](auto& a) { a.grad = f32({32}); });
    of_adamw({"parameter", "[33]", "[34]"}, [](auto& a) { a.parameter = real({34}); });
    of_adamw({"second_moment", "bf16"}, [](auto& a) { a.first_moment = make(DType::bf16, {33}); });
    of_adamw({"adamw_step parameter", "bf16"}, [](auto& a) {
        a.master = make(DType::bf16, {33});
        a.parameter = f32({33});
    });
}

TEST_P(StepChecksTest, Muon) {
    refuse(op::PolarExpress{.x = {real({7, 48})}, .workspace = real({9})}, {"[7,48]"});
    refuse(op::PolarExpress{.x = {real({1, 7, 48})}, .workspace = real({9})}, {"workspace", "[9]"});
    const int64_t size = op::PolarExpress::workspace_size(1, 7, 48);
    refuse(op::PolarExpress{.x = {real({1, 7, 48}), real({1, 48, 7})}, .workspace = real({size})},
           {"workspace", fmt::format("[{}]", 2 * size)});
    const Changed<op::MuonMomentum> momentum{
        {.pieces = {{.update = real({32}), .momentum = f32({32}), .grad = f32({32})},
                    {.update = real({33}), .momentum = f32({33}), .grad = f32({33})}},
         .grad_scale = f32({1}),
         .mu = f32({1})}};
    momentum({"update", "[33]", "[32]"}, [](auto& a) { a.pieces[1].update = real({32}); });
    momentum({"mu", "[1]", "[2]"}, [](auto& a) { a.mu = f32({2}); });
    const op::MuonApply::Piece piece{
        .parameter = real({33}), .master = f32({33}), .update = real({33}), .rates = f32({2})};
    const Changed<op::MuonApply> apply{{.pieces = {piece, piece}, .grad_scale = f32({1})}};
    apply({"grad_scale", "[1]", "[2]"}, [](auto& a) { a.grad_scale = f32({2}); });
    apply({"rates", "[2]", "[1]"}, [](auto& a) { a.pieces[1].rates = f32({1}); });
    apply({"muon_apply parameter", "bf16"}, [](auto& a) {
        a.pieces[1].master = make(DType::bf16, {33});
        a.pieces[1].parameter = f32({33});
    });
    apply({"muon_apply master", "bf16"},
          [](auto& a) { a.pieces[1].master = a.pieces[1].parameter = make(DType::bf16, {33}); });
    const Changed<op::NormuonScale> scale{
        {.update = real({2, 7, 48}), .second_moment = f32({2, 48}), .grad_scale = f32({1}), .beta2 = 0.95f}};
    scale({"[n,R,C]", "[7,48]"}, [](auto& a) { a.update = real({7, 48}); });
    scale({"second_moment", "[2,48]", "[2,7]"}, [](auto& a) { a.second_moment = f32({2, 7}); });
    scale({"second_moment", "[2,7]", "[2,48]"}, [](auto& a) { a.lines = NormuonLines::rows; });
    scale({"grad_scale", "[1]", "[2]"}, [](auto& a) { a.grad_scale = f32({2}); });
}

TEST_P(StepChecksTest, Utilities) {
    refuse(op::Cast{.out = real({7}), .in = f32({8})}, {"[7]", "[8]"});
    refuse(op::NormTerm{.pieces = {{.out = f32({2}), .x = real({8})}}, .norm = VectorNorm::three},
           {"[1]", "[2]"});
    refuse(op::CountNonfinite{.out = make(DType::bf16, {1}), .x = real({8})}, {"f32", "bf16[1]"});
    refuse(op::ClipCoefficient{.coefficient = f32({2}),
                               .norm = f32({1}),
                               .terms = f32({8}),
                               .max_norm = 1.0f,
                               .kind = VectorNorm::two},
           {"coefficient", "[1]", "[2]"});
    const Tensor x = make(DType::bf16, {7});
    refuse(op::RandomNormal{.x = x, .seed = 1, .sequence = 1, .offset = 0, .deviation = 1.0f},
           {"f32", "bf16[7]"});
    refuse(op::RandomUniform{.x = x, .seed = 1, .sequence = 1, .offset = 0, .bound = 1.0f},
           {"f32", "bf16[7]"});
}

}  // namespace speedrun::testing::step_checks_test
