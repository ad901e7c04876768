// A model with FP8 matmuls against its float64 definition: quantised operands, scales, and dtype per direction.
#include <random>

#include "tests/errors.h"
#include "tests/reference/reference.h"
#include "tests/train/model_harness.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/nodes/fusions.h"

namespace speedrun::testing::fp8_test {

using reference::fp8;
using reference::matmul;
using reference::Matrix;
using reference::transposed;

constexpr int64_t kTokens = 48, kWidth = 32, kHidden = 64, kVocabulary = 60, kPadded = 64;
constexpr float kGradientScale = 1.0f / 40;

// FP8 of MLP up with amax scales, MLP down with constants, head with the recipe's scales; or no FP8.
ModelConfig model_of(bool with_fp8) {
    const std::string mlp =
        with_fp8
            ? R"("ratio": 2, "init": {"type": "normal", "value": 0.2}, "down_init": {"type": "normal", "value": 0.2},
                    "up_fp8": {"x": {"by": "amax", "value": 1.1}, "weight": {"by": "amax"}},
                    "down_fp8": {"x": {"by": "constant", "value": 0.02}, "weight": {"by": "constant", "value": 0.004}})"
            : R"("ratio": 2)";
    const std::string head = with_fp8 ? R"("softcap": 0, "fp8": {"weight_scale": 0.004})" : R"("softcap": 0)";
    return parse_config(R"({"model": {"preset": "none", "model_dim": 32, "vocab_size": 60,
        "tables": {"embed": {"init": {"type": "normal", "value": 1}}},
        "input": [{"type": "table", "table": "embed"}],
        "layers": {"count": 1, "each": {"attention": null, "mlp": {)" +
                            mlp + R"(}}},
        "output": [{"type": "norm"}], "head": {)" +
                            head + R"(}},
        "batch": {"sequence_length": 48, "microbatch_tokens": 48, "tokens_per_step": 48},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", {})
        .model;
}

Matrix rounded_by(const Matrix& x, float scale, DType type) {
    Matrix result = x;
    for (double& value : result.values) value = scale * fp8(static_cast<float>(value) * (1 / scale), type);
    return result;
}
float amax_scale(const Matrix& x, float factor) {
    double largest = 0;
    for (const double value : x.values) largest = std::max(largest, std::abs(value));
    return static_cast<float>(largest) * (factor / 448);
}
Matrix product(const Matrix& a, const Matrix& b) {  // a bᵀ
    return matmul(a, transposed(b));
}

struct Expected {
    double loss = 0;
    std::map<std::string, Matrix> gradients;
};

Expected expected_of(const std::map<std::string, Matrix>& w, const HostBatch& batch) {
    const Matrix x = reference::embedding_forward(batch.tokens, w.at("embed.weight"), {}, {});
    const auto first = reference::norm_forward(x, {}, {}, NormKind::rmsnorm);
    const Matrix &up = w.at("blocks.0.mlp.up.weight"), &down = w.at("blocks.0.mlp.down.weight"),
                 &head = w.at("head.weight");
    const Matrix hidden = product(rounded_by(first.y, amax_scale(first.y, 1.1f), DType::e4m3),
                                  rounded_by(up, amax_scale(up, 1), DType::e4m3));
    const Matrix active = reference::activation_forward(hidden, Activation::relu_squared);
    const Matrix out = reference::plus(
        x, product(rounded_by(active, 0.02f, DType::e4m3), rounded_by(down, 0.004f, DType::e4m3)));
    const auto last = reference::norm_forward(out, {}, {}, NormKind::rmsnorm);
    const auto root = static_cast<float>(std::sqrt(32.0) / 448);
    const Matrix x8 = rounded_by(last.y, root, DType::e4m3), head8 = rounded_by(head, 0.004f, DType::e4m3);
    const Matrix logits = product(x8, head8);
    Expected result;
    for (const double loss : reference::cross_entropy_losses(logits, batch.targets, kVocabulary, {}).values)
        result.loss += loss;
    const Matrix dlogits =
        rounded_by(reference::cross_entropy_dlogits(logits, batch.targets, kVocabulary, {}, kGradientScale),
                   kGradientScale / 448, DType::e5m2);
    result.gradients["head.weight"] = matmul(transposed(dlogits), x8);
    // Gradients below the head are not quantised.
    const Matrix dout = reference::norm_backward(matmul(dlogits, head8), out, {}, NormKind::rmsnorm).ds;
    result.gradients["blocks.0.mlp.down.weight"] = matmul(transposed(dout), active);
    const Matrix dhidden =
        reference::activation_backward(matmul(dout, down), hidden, Activation::relu_squared);
    result.gradients["blocks.0.mlp.up.weight"] = matmul(transposed(dhidden), first.y);
    const Matrix dx =
        reference::plus(dout, reference::norm_backward(matmul(dhidden, up), x, {}, NormKind::rmsnorm).ds);
    result.gradients["embed.weight"] = reference::embedding_backward(kPadded, batch.tokens, dx);
    return result;
}

void expect_near(const Values& actual, const Matrix& expected, double tolerance, const std::string& name) {
    ASSERT_EQ(static_cast<int64_t>(actual.size()), expected.size()) << name;
    const double scale = reference::norm(expected) / std::sqrt(static_cast<double>(expected.size()));
    for (size_t i = 0; i < actual.size(); ++i)
        ASSERT_NEAR(actual[i], expected.values[i], tolerance * scale) << name << ", element " << i;
}

std::map<std::string, Matrix> parameters_of(ModelHarness& h) {
    std::map<std::string, Matrix> all;
    for (const Parameter& p : h.table().all()) {
        Matrix& matrix = all[p.name] = Matrix(p.numel() / kWidth, kWidth);
        if (p.name == "blocks.0.mlp.down.weight") matrix = Matrix(kWidth, kHidden);
        const Values values = h.read(h.model.parameters().compute(p));
        std::copy(values.begin(), values.end(), matrix.values.begin());
    }
    return all;
}

// No value is close enough to an FP8 rounding tie for f32 errors to change its rounding. The tolerances are for
// f32 sums.
TEST(Fp8ModelTest, LossAndGradientsMatchQuantisedOperands) {
    const HostBatch batch = random_batch(model_of(true), 1, kTokens, false, 3);
    // Rows of logits per chunk: all, or a third.
    for (const int64_t logits_at_once : {int64_t{0}, 16 * kPadded}) {
        MemoryConfig memory;
        memory.logits_at_once = logits_at_once;
        ModelHarness h(model_of(true), kTokens, kTokens, DType::f32, {}, memory);
        h.randomize(0.3, 11);
        const Expected expected = expected_of(parameters_of(h), batch);
        EXPECT_NEAR(h.backward(batch, kGradientScale), expected.loss, 2e-6 * expected.loss);
        for (const Parameter& p : h.table().all())
            expect_near(h.gradient(p), expected.gradients.at(p.name), 1e-4, p.name);
    }
}

TEST(Fp8ModelTest, ValidationIsNotQuantised) {
    ModelHarness with(model_of(true), kTokens, kTokens), without(model_of(false), kTokens, kTokens);
    const HostBatch batch = random_batch(model_of(true), 1, kTokens, false, 3);
    for (ModelHarness* h : {&with, &without}) h->randomize(0.3, 11);
    EXPECT_EQ(with.forward_loss(batch), without.forward_loss(batch));
    EXPECT_NE(with.backward(batch, 1), without.backward(batch, 1));
}

// Recomputation in backward quantises the same operands in the same way.
TEST(Fp8ModelTest, CheckpointingIsBitwiseEqual) {
    MemoryConfig memory;
    memory.activation_checkpointing = Checkpointing::full;
    ModelHarness plain(model_of(true), kTokens, kTokens),
        checkpointed(model_of(true), kTokens, kTokens, DType::f32, {}, memory);
    const HostBatch batch = random_batch(model_of(true), 1, kTokens, false, 3);
    for (ModelHarness* h : {&plain, &checkpointed}) h->randomize(0.3, 11);
    EXPECT_EQ(plain.backward(batch, 1), checkpointed.backward(batch, 1));
    for (const Parameter& p : plain.table().all())
        EXPECT_EQ(plain.gradient(p), checkpointed.gradient(p)) << p.name;
}

// Loss and gradients of a program with these fusions. fused: number of steps that fuse the activation with the matmuls before and
// after it.
struct Outcome {
    std::vector<float> numbers;
    int fused = 0;
};

Outcome outcome_of(const Fusions& fusions) {
    const ModelGraph m =
        build_model(model_of(true), {.tokens = kTokens, .sequence_length = kTokens}, {.logit_rows = kTokens});
    const Program program =
        derive_program(m.graph, fusions, Retained(static_cast<size_t>(m.graph.num_units())), DType::f32);
    Outcome result;
    for (const Instruction& step : program.forward)
        result.fused += step.calls.size() == 3 && step.calls[1].node->kind() == std::string("activation");
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    ParameterStore parameters(m.table, runtime);
    GradientStore gradients(m.table, parameters.layout(), runtime);
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal(0, 0.3f);
    std::vector<std::vector<float>> values;
    for (const Parameter& p : m.table.all()) {
        values.emplace_back(static_cast<size_t>(p.numel()));
        for (float& value : values.back()) value = normal(random);
    }
    parameters.assign(values);
    const Buffer memory(runtime.device(), "shared", MemoryCategory::activations, share_memory(program).bytes),
        loss(runtime.device(), "loss", MemoryCategory::workspace, size_of(DType::f32));
    Executor executor(m.graph, program, m.table, parameters, runtime, memory);
    const HostBatch batch = random_batch(model_of(true), 1, kTokens, false, 3);
    for (const auto& [name, ids] : {std::pair{"tokens", &batch.tokens}, {"targets", &batch.targets}}) {
        const Tensor to = executor.held(m.find_input(name)->value);
        runtime.device().copy(to.data, ids->data(), to.bytes(), runtime.compute());
    }
    PassTracker tracker(m.table, gradients);
    executor.track(&tracker);
    tracker.begin_step();
    executor.forward(true);
    executor.backward({.loss_sum = loss.tensor(DType::f32, {1}), .gradient_scale = 1, .training = true});
    runtime.synchronize();
    const auto add = [&](const Tensor& t) {
        result.numbers.insert(result.numbers.end(), t.as<float>(), t.as<float>() + t.numel());
    };
    add(loss.tensor(DType::f32, {1}));
    for (const Parameter& p : m.table.all()) add(gradients.flat(p));
    return result;
}

TEST(Fp8ModelTest, FusedQuantisationIsBitwiseEqual) {
    const Outcome fused = outcome_of(model_fusions()), apart = outcome_of({});
    EXPECT_EQ(fused.fused, 1);
    EXPECT_EQ(apart.fused, 0);
    EXPECT_EQ(fused.numbers, apart.numbers);
    EXPECT_GT(std::abs(fused.numbers.front()), 1);
}

void expect_refused(const std::vector<std::string>& overrides, const std::string& part) {
    const char* const text = R"({"model": {"preset": "none", "model_dim": 32, "vocab_size": 60,
        "tables": {"embed": {}}, "input": [{"type": "table", "table": "embed"}],
        "layers": {"count": 1, "each": {"attention": null, "mlp": {}}}, "head": {}},
        "batch": {"sequence_length": 48, "microbatch_tokens": 48, "tokens_per_step": 48},
        "optimizers": {"groups": [{"params": ["*"]}]}})";
    expect_error(ExitCode::usage, {part}, [&] { parse_config(text, "test", overrides).validate(); });
}

TEST(Fp8ModelTest, RejectsUnsupportedShapes) {
    expect_refused({"model.model_dim=40", "model.head.fp8={}"}, "as model.model_dim, got 40");
    expect_refused({"model.layers.each.mlp={\"bias\":true,\"up_fp8\":{}}"}, "mlp.bias false");
    expect_refused({"model.head.fp8={\"weight_scale\":0}"}, "weight_scale");
    expect_refused({"model.layers.each.mlp={\"up_fp8\":{\"x\":{\"by\":\"last\"}}}"}, "last_step");
    expect_refused({"model.layers.each.mlp={\"up_fp8\":{\"x\":{\"by\":\"last_step\",\"exact_steps\":-1}}}"},
                   "exact_steps");
    EXPECT_THROW(ModelHarness(model_of(true), 24, 24), Error) << "24 rows of logits";
}

}  // namespace speedrun::testing::fp8_test
