// Muon with a second, slow momentum: its updates against float64, and whole runs that are stopped, continued and sharded.
#include "tests/runs/rank_run_fixture.h"
#include "train/optim/optimizers.h"

namespace speedrun::testing::slow_momentum_run_test {

constexpr int64_t kStart = 5;

class SlowMomentumRunTest : public RankRunFixture {
  protected:
    Config slow_config(const RunSetup& setup, Settings more = {}) const {
        for (const char* key :
             {"slow_momentum=0.98", "slow_start=5", "slow_blend=0.5615", "fast_momentum=0.85"})
            more.push_back(std::string("optimizers.groups.0.") + key);
        return config_of(setup, more);
    }
};

// Both momenta and the update of `propose` in double.
struct Reference {
    explicit Reference(size_t count) : fast(count), slow(count), update(count) {}
    void step(const MuonConfig& muon, int64_t number, double mu, const std::vector<float>& gradient) {
        const bool blends = number >= muon.slow_start;
        const double decay = blends && muon.fast_momentum > 0 ? muon.fast_momentum : mu,
                     share = blends ? muon.slow_blend : 0, kept = muon.nesterov ? mu : 1;
        for (size_t i = 0; i < fast.size(); ++i) {
            const double g = 0.25 * gradient[i];
            fast[i] = decay * fast[i] + (1 - decay) * g;
            slow[i] = muon.slow_momentum * slow[i] + (1 - muon.slow_momentum) * g;
            update[i] = (1 - kept) * g + kept * ((1 - share) * fast[i] + share * slow[i]);
        }
    }
    std::vector<double> fast, slow, update;
};

// Record 92: slow decay 0.98, share 0.5615 from a step on, fast decay 0.85 from there on while the Nesterov weights follow the
// schedule of momentum.
template <class Real>
void expect_reference(const MuonConfig& muon, double tolerance) {
    constexpr int64_t kCount = 1500;  // more than a row of sum_flat()
    Runtime runtime({.device = DeviceKind::cpu, .precision = dtype_of<Real>(), .threads = 1});
    MuonConfig plain = muon;
    plain.slow_momentum = 0;
    const Muon slow({}, muon), fast({}, plain);
    std::vector<float> gradient(kCount), copy(kCount), first(kCount), second(kCount), only(kCount);
    std::vector<Real> update(kCount), without(kCount);
    float scale = 0.25f;
    const auto flat = [](auto& values) {
        using Value = typename std::decay_t<decltype(values)>::value_type;
        return Tensor(values.data(), dtype_of<Value>(), {kCount});
    };
    const std::vector<Tensor> both = {flat(first), flat(second)}, one = {flat(only)};
    Reference expected(kCount);
    uint32_t random = 1;
    for (int64_t step = 0; step < 3 * muon.slow_start; ++step) {
        for (float& g : gradient)
            g = static_cast<float>((random = random * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
        expected.step(muon, step, muon_momentum_at({}, muon, step), gradient);
        copy = gradient;
        StepContext context{.step = step,
                            .grad_scale = Tensor(&scale, DType::f32, {1}),
                            .ops = runtime.ops(),
                            .stream = runtime.optimizer()};
        const auto shard = [&](std::vector<float>& g, const std::vector<Tensor>& state) {
            return OptimizerShard{.compute = {}, .master = {}, .gradient = flat(g), .state = state};
        };
        const auto propose = [&](const Muon& muon, std::vector<Real>& to, const OptimizerShard& from) {
            std::vector<float> numbers = muon.numbers(context, {});
            context.numbers = Tensor(numbers.data(), DType::f32, {static_cast<int64_t>(numbers.size())});
            const MatrixOptimizer::Slice slices[] = {{flat(to), from, 0}};
            muon.propose(slices, context);
            runtime.synchronize();
        };
        propose(fast, without, shard(copy, one));
        propose(slow, update, shard(gradient, both));
        for (size_t i = 0; i < kCount; ++i) {
            ASSERT_NEAR(static_cast<float>(update[i]), expected.update[i], tolerance)
                << step << ", element " << i;
            ASSERT_NEAR(first[i], expected.fast[i], 1e-6) << step << ", element " << i;
            ASSERT_NEAR(second[i], expected.slow[i], 1e-6) << step << ", element " << i;
            if (step >= muon.slow_start) continue;
            ASSERT_EQ(static_cast<float>(update[i]), static_cast<float>(without[i])) << "before slow_start";
        }
    }
}

// Values are below 1/4: f32 is exact to 2^-26 an operation, a rounding to bf16 to 2^-11.
TEST_F(SlowMomentumRunTest, UpdatesAgreeWithFloat64) {
    MuonConfig muon;
    muon.slow_momentum = 0.98;
    muon.slow_start = 40;
    muon.slow_blend = 0.5615;
    muon.momentum_warmup_steps = 100;
    for (const double fast : {0.85, 0.0}) {
        for (const bool nesterov : {true, false}) {
            muon.fast_momentum = fast;
            muon.nesterov = nesterov;
            expect_reference<float>(muon, 1e-6);
            expect_reference<Bf16>(muon, 1.0 / 2048 + 1e-6);
        }
    }
}

TEST_F(SlowMomentumRunTest, ResumesBitwiseUnderEveryStrategy) {
    train(slow_config(kOneRank), 1, "alone");
    train(config_of(kOneRank), 1, "without");
    const std::vector<double> expected = curve("alone"), without = curve("without");
    // A line has loss and norm. The first blended update changes the loss of the step after it.
    const size_t same = 2 * (kStart + 1) + 1;  // with the validation after 5 steps
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + same, without.begin()));
    EXPECT_NE(expected[same], without[same]);
    int number = 0;
    for (const RunSetup& setup : std::vector<RunSetup>{{2, 1, "ddp", "normuon"},
                                                       {2, 1, "zero1", "heads"},
                                                       {2, 1, "zero2", "normuon"},
                                                       {4, 2, "zero3", "normuon"},
                                                       {2, 1, "zero3", "normuon", "bf16"}}) {
        if (kSanitized && std::string(setup.strategy) != "zero3") continue;
        const std::string whole = fmt::format("whole{}", number++);
        train(slow_config(setup, {"checkpoint.every=2"}), setup.ranks, whole);
        expect_continues(slow_config(setup), setup.ranks, whole, {2, 6});
        if (std::string(setup.precision) == "bf16" || std::string(setup.optimizer) == "heads") continue;
        // Ranks sum in another order: f32 rounding, amplified by ten steps.
        train(slow_config(kOneRank), 1, whole + "_alone", checkpoint(whole, 6));
        expect_near(curve(whole + "_alone"), curve(whole, 6), kRanksTolerance, whole);
        expect_near(curve(whole), expected, kRanksTolerance, whole);
    }
}

TEST_F(SlowMomentumRunTest, RejectsKeysWithoutSlowMomentum) {
    const auto refused = [&](const std::string& text, Settings keys) {
        for (std::string& key : keys) key.insert(0, "optimizers.groups.0.");
        expect_error(ExitCode::usage, {text}, [&] { config(keys); });
    };
    refused("optimizers.groups[0].slow_start is 5, but slow_momentum is 0", {"slow_start=5"});
    refused("slow_blend is 0.25, but slow_momentum is 0", {"slow_blend=0.25"});
    refused("fast_momentum is 0.5, but slow_momentum is 0", {"fast_momentum=0.5"});
    refused(
        "optimizers.groups[0].slow_start 150 is not below the 150 steps that the group takes in 150 steps of the run "
        "(every 1): lower it",
        {"slow_momentum=0.9", "slow_start=150"});
    refused("slow_start 75 is not below the 75 steps", {"slow_momentum=0.9", "slow_start=75", "every=2"});
    refused("slow_momentum: 1 is outside [0, 0.999999]", {"slow_momentum=1"});
    refused("slow_blend: 1.5 is outside [0, 1]", {"slow_momentum=0.9", "slow_blend=1.5"});
    refused("slow_momentum is 0.9, but type is adamw", {"type=adamw", "slow_momentum=0.9"});
}

}  // namespace speedrun::testing::slow_momentum_run_test
