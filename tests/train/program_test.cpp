// Programs derived from graphs. Gradients of random graphs equal those of a plain chain rule with any retention,
// recomputation and fusion. Every kind of planted derivation error must be detected.
// Covers: train/model/graph/*.cpp
#include "train/model/graph/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/sanitized.h"
#include "tests/train/random_graph.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/graph/executor.h"
#include "train/model/nodes/copy.h"
#include "train/model/nodes/fusions.h"
#include "train/model/nodes/norm.h"
#include "train/model/nodes/redistribute.h"
#include "train/sharding/first_fit.h"

namespace speedrun::testing::program_test {

using reference::Matrix;

constexpr uint64_t kGraphs = kSanitized ? 15 : 60;  // for planted errors
constexpr uint64_t kManyGraphs = kSanitized ? 200 : 1000;

// Indexed by parameter id.
using Gradients = std::vector<std::vector<float>>;

// Fills each parameter with NaN when it is released.
class Poisoner final : public PassTracker {
  public:
    Poisoner(const RandomGraph& g, const GradientStore& gradients, ParameterStore& parameters,
             Runtime& runtime)
        : PassTracker(g.table, gradients), parameters_(parameters), runtime_(runtime) {}

  private:
    void on_param_free(const Parameter& p) override {
        runtime_.ops().fill(
            {.x = parameters_.compute_flat(p), .value = std::numeric_limits<float>::quiet_NaN()},
            runtime_.compute());
    }

    ParameterStore& parameters_;
    Runtime& runtime_;
};

// Records each gradient at its announcement.
class Listener final : public PassTracker {
  public:
    Listener(const RandomGraph& g, const GradientStore& gradients, Gradients& heard,
             const std::function<std::vector<float>(const Parameter&)>& read)
        : PassTracker(g.table, gradients), heard_(heard), read_(read) {}

  private:
    void on_grad_ready(const Parameter& p) override { heard_[static_cast<size_t>(p.id)] = read_(p); }

    Gradients& heard_;
    std::function<std::vector<float>(const Parameter&)> read_;
};

struct Outcome {
    Gradients gradients;        // after the pass
    Gradients ready_gradients;  // at each announcement
    std::string noticed;        // error thrown by the program's own checks
};

Outcome run(const RandomGraph& g, const Program& program, bool poison = false) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    ParameterStore parameters(g.table, runtime);
    GradientStore gradients(g.table, parameters.layout(), runtime);
    std::vector<std::vector<float>> values;
    for (const Matrix& p : g.parameters) values.emplace_back(p.values.begin(), p.values.end());
    parameters.assign(values);
    const Buffer memory(runtime.device(), "shared", MemoryCategory::activations, share_memory(program).bytes);
    Executor executor(g.graph, program, g.table, parameters, runtime, memory);
    const auto put = [&](ValueId to, const reference::Indices& ids) {
        runtime.device().copy(executor.held(to).data, ids.data(), executor.held(to).bytes(),
                              runtime.compute());
    };
    put(g.tokens, g.token_ids);
    put(g.targets, g.target_ids);
    const Buffer loss(runtime.device(), "loss", MemoryCategory::workspace, size_of(DType::f32));
    const auto read = [&](const Parameter& p) {
        std::vector<float> host(static_cast<size_t>(p.numel()));
        const Tensor gradient = gradients.flat(p);
        runtime.device().copy(host.data(), gradient.data, gradient.bytes(), runtime.compute());
        runtime.synchronize();
        return host;
    };
    Outcome result;
    result.ready_gradients.resize(g.parameters.size());
    Poisoner poisoner(g, gradients, parameters, runtime);
    Listener listener(g, gradients, result.ready_gradients, read);
    PassTracker& tracker = poison ? static_cast<PassTracker&>(poisoner) : listener;
    executor.track(&tracker);
    tracker.begin_step();
    try {
        executor.forward(true);
        executor.backward({.loss_sum = loss.tensor(DType::f32, {1}), .gradient_scale = 1});
    } catch (const Error& error) {
        result.noticed = error.what();
    }
    for (const Parameter& p : g.table.all()) result.gradients.push_back(read(p));
    return result;
}

Retained everything(const RandomGraph& g) {
    return Retained(static_cast<size_t>(g.graph.num_units()));
}

Program derived(const RandomGraph& g) {
    static const Fusions none;
    return derive_program(g.graph, none, everything(g), DType::f32);
}

TEST(ProgramTest, RandomGraphGradientsMatchChainRule) {
    for (uint64_t seed = 0; seed < kManyGraphs; ++seed) {
        const RandomGraph g(seed);
        const std::vector<Matrix> expected = g.gradients();
        const Outcome actual = run(g, derived(g));
        ASSERT_EQ(actual.noticed, "") << seed;
        for (const Parameter& p : g.table.all()) {
            const Matrix& e = expected[static_cast<size_t>(p.id)];
            double largest = 0, error = 0;
            for (int64_t i = 0; i < e.size(); ++i) {
                largest = std::max(largest, std::abs(e[i]));
                error = std::max(error, std::abs(e[i] - actual.gradients[static_cast<size_t>(p.id)][i]));
            }
            // f32 through at most 18 nodes, some of which divide by small deviations: relative errors up to 3e-6
            // occurred. Sums of 128 terms of about 2, after an addend, that cancel have errors of a hundred roundings of 1.2e-7.
            EXPECT_LT(error, 3e-5 * largest + 1.5e-5) << "graph " << seed << ", " << p.name;
        }
        EXPECT_EQ(actual.ready_gradients, actual.gradients) << "announced too early, graph " << seed;
    }
}

TEST(ProgramTest, FusionAndRecomputationAreBitwiseEqual) {
    const Fusions fusions = model_fusions();
    std::mt19937_64 random(1);
    size_t repeats = 0, fused = 0;
    for (uint64_t seed = 0; seed < kGraphs; ++seed) {
        const RandomGraph g(seed);
        const Outcome expected = run(g, derived(g));
        for (int variant = 0; variant < 4; ++variant) {
            Retained retained = everything(g);
            for (auto& unit : retained)
                if (random() % 2 == 0) unit = random() % 2 == 0 ? Cost::input : Cost::product;
            const Program program = derive_program(g.graph, fusions, retained, DType::f32);
            for (const Instruction& step : program.backward) repeats += step.repeats;
            for (const Instruction& step : program.forward) fused += step.fusion != nullptr;
            const Outcome actual = run(g, program);
            EXPECT_EQ(actual.gradients, expected.gradients) << "graph " << seed;
            EXPECT_EQ(run(g, program, true).gradients, expected.gradients)
                << "a parameter is read after its release, graph " << seed;
        }
    }
    EXPECT_GT(repeats, kGraphs);
    EXPECT_GT(fused, kGraphs);
}

// Refused: a value used by two in-place operations, or by one and a normal read. Both gradients would be stored in
// the same memory.
TEST(ProgramTest, RejectsAliasedGradients) {
    const auto derive = [](bool first_way, bool second_way) {
        NodeGraph graph;
        const Extent tokens{Dimension::tokens, 4}, width{Dimension::width, 3};
        const TensorSlice part{.size = 2, .index = 0};
        const auto compute_dtype = [&](const char* name) {
            return graph.value(name, Element::compute_dtype, {tokens, width});
        };
        const ValueId x = compute_dtype("x");
        graph.add(std::make_unique<Copy>(Copy::Ports{
            .y = x, .x = graph.value("in", Element::compute_dtype, {tokens, width}, Holder::batch)}));
        const auto way = [&](const char* name) {
            const ValueId y = graph.view(x, name, 0, width.size);
            graph.add(std::make_unique<Redistribute>(Redistribute::Ports{.y = y, .x = x},
                                                     Redistribution::enter(),
                                                     Redistribute::Options{part, tokens.size, width.size}));
            return y;
        };
        const ValueId a = first_way ? way("a") : x, b = second_way ? way("b") : x, sum = compute_dtype("sum");
        graph.add(std::make_unique<Add>(Add::Ports{.sum = sum, .x = a, .delta = b}));
        const ValueId losses = graph.value("losses", Element::f32, {tokens}, Holder::model);
        const ValueId targets = graph.value("targets", Element::ids, {tokens}, Holder::batch);
        graph.add(std::make_unique<Head>(
            Head::Ports{.losses = losses, .x = sum, .targets = targets, .weight = 0},
            HeadOptions{.num_tokens = 4, .logit_rows = 4, .vocab_size = 16, .padded_vocab_size = 16}));
        derive_program(graph, model_fusions(), Retained(static_cast<size_t>(graph.num_units())), DType::f32);
    };
    EXPECT_NO_THROW(derive(false, false));
    EXPECT_THROW(derive(true, true), Error);
    EXPECT_THROW(derive(true, false), Error);
    EXPECT_THROW(derive(false, true), Error);
}

// Terms with the same values share an operation, which runs within a unit's backward. It may follow a fused norm.
TEST(ProgramTest, SharesTermsOfRandomGraphs) {
    const Fusions fusions = model_fusions();
    size_t shared = 0, after_fusion = 0;
    for (uint64_t seed = 0; seed < kGraphs; ++seed) {
        const RandomGraph g(seed);
        const Program program = derive_program(g.graph, fusions, everything(g), DType::f32);
        for (size_t s = 0; s < program.backward.size(); ++s) {
            if (program.backward[s].kind != Instruction::Kind::shared) continue;
            EXPECT_GT(program.backward[s].calls.size(), 1u);
            ++shared;
            after_fusion += program.backward[s - 1].fusion != nullptr;
        }
    }
    EXPECT_GT(shared, kGraphs / 6);
    EXPECT_GT(after_fusion, 0u);
}

// ---- planted errors, one at a time

bool shows(const RandomGraph& g, const Program& program, const Outcome& right, bool poison = false) {
    const Outcome wrong = run(g, program, poison);
    if (!wrong.noticed.empty() || wrong.gradients != right.gradients) return true;
    return !poison && wrong.ready_gradients != right.ready_gradients;
}

// Calls body(seed, graph, program, its right outcome) for every graph.
template <class Body>
void each_graph(Body&& body) {
    for (uint64_t seed = 0; seed < kGraphs; ++seed) {
        const RandomGraph g(seed);
        const Program program = derived(g);
        body(seed, g, program, run(g, program));
    }
}

// Calls plant(place) for every gradient read by every backward node. If it returns true, it has changed the program,
// and the change must affect the result.
size_t plant_in_gradients(const std::function<bool(GradientLocation&)>& plant) {
    size_t planted = 0;
    each_graph([&](uint64_t seed, const RandomGraph& g, const Program& program, const Outcome& right) {
        for (size_t s = 0; s < program.backward.size(); ++s) {
            for (size_t c = 0; c < program.backward[s].calls.size(); ++c) {
                for (size_t i = 0; i < program.backward[s].calls[c].read_gradients.size(); ++i) {
                    Program wrong = program;
                    if (!plant(wrong.backward[s].calls[c].read_gradients[i])) continue;
                    ++planted;
                    EXPECT_TRUE(shows(g, wrong, right))
                        << "graph " << seed << ", step " << s << ", read " << i;
                }
            }
        }
    });
    return planted;
}

TEST(ProgramTest, DetectsDroppedAccumulation) {
    EXPECT_GT(
        plant_in_gradients([](GradientLocation& gradient) { return std::exchange(gradient.adds, false); }),
        5u);
}

TEST(ProgramTest, DetectsDroppedResidual) {
    const auto drop = [](GradientLocation& gradient) {
        return std::exchange(gradient.other, {}).storage >= 0;
    };
    EXPECT_GT(plant_in_gradients(drop), 20u);
}

TEST(ProgramTest, DetectsDroppedSum) {
    size_t planted = 0;
    each_graph([&](uint64_t seed, const RandomGraph& g, const Program& program, const Outcome& right) {
        for (size_t s = 0; s < program.backward.size(); ++s) {
            if (program.backward[s].kind != Instruction::Kind::add) continue;
            Program wrong = program;
            wrong.backward.erase(wrong.backward.begin() + static_cast<ptrdiff_t>(s));
            ++planted;
            EXPECT_TRUE(shows(g, wrong, right)) << "graph " << seed << ", step " << s;
        }
    });
    EXPECT_GT(planted, kGraphs / 3);
}

TEST(ProgramTest, DetectsEarlyGradReady) {
    size_t planted = 0;
    each_graph([&](uint64_t seed, const RandomGraph& g, const Program& program, const Outcome& right) {
        for (const Parameter& p : g.table.all()) {
            Program wrong = program;
            std::vector<NodeCall::Use*> uses;
            for (Instruction& step : wrong.backward)
                for (NodeCall& call : step.calls)
                    for (NodeCall::Use& use : call.uses)
                        if (use.parameter == p.id) uses.push_back(&use);
            if (uses.size() < 2) continue;
            std::swap(uses[uses.size() - 2]->completes, uses.back()->completes);
            ++planted;
            EXPECT_TRUE(shows(g, wrong, right)) << "graph " << seed << ", " << p.name;
        }
    });
    EXPECT_GT(planted, kGraphs / 3);
}

TEST(ProgramTest, DetectsEarlyRelease) {
    size_t planted = 0;
    each_graph([&](uint64_t seed, const RandomGraph& g, const Program& program, const Outcome& right) {
        for (size_t s = 0; s < program.backward.size(); ++s) {
            for (const ParameterId id : program.backward[s].freed) {
                Program wrong = program;
                std::erase(wrong.backward[s].freed, id);
                // Announced and released too early, before the node's last read of the value.
                for (NodeCall& call : wrong.backward[s].calls)
                    for (NodeCall::Use& use : call.uses)
                        if (use.parameter == id) use.read_later = false;
                const Node& node = *program.backward[s].calls.front().node;
                if (std::string(node.kind()) != "linear") continue;  // others read it inside the operation
                ++planted;
                EXPECT_TRUE(shows(g, wrong, right, true)) << "graph " << seed << ", " << g.table[id].name;
            }
        }
    });
    EXPECT_GT(planted, kGraphs / 3);
}

// True if a storage first written during the lifetime of storage `s` overlaps it in memory, with the placement of
// `wrong`.
bool overlaps(const Program& right, const Program& wrong, size_t s) {
    std::vector<BufferRequest> requests;
    for (const Storage& storage : wrong.storages)
        requests.push_back(
            storage.held != kNoValue
                ? BufferRequest{}
                : BufferRequest{.bytes = storage.bytes, .first = storage.first, .last = storage.last});
    const std::vector<int64_t> at = first_fit(requests, 256).offset;
    bool found = false;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Storage &other = right.storages[i], &mine = right.storages[s];
        if (i == s || requests[i].bytes == 0 || other.first <= mine.first || other.first >= mine.last)
            continue;
        if (at[i] >= at[s] + mine.bytes || at[s] >= at[i] + other.bytes) continue;
        if (other.name.starts_with("order of")) return false;  // wrong indices would crash the process
        found = true;
    }
    return found;
}

// The lifetime of one storage ends too early. Wherever this makes two live storages overlap, the result must differ.
TEST(ProgramTest, DetectsOverlappingLifetime) {
    size_t planted = 0;
    each_graph([&](uint64_t seed, const RandomGraph& g, const Program& program, const Outcome& right) {
        for (size_t s = 0; s < program.storages.size(); ++s) {
            const Storage& storage = program.storages[s];
            if (storage.held != kNoValue || storage.last - storage.first < 2 ||
                storage.name.starts_with("order of"))
                continue;
            Program wrong = program;
            wrong.storages[s].last = storage.first;
            if (!overlaps(program, wrong, s)) continue;
            ++planted;
            EXPECT_TRUE(shows(g, wrong, right)) << "graph " << seed << ", " << storage.name;
        }
    });
    EXPECT_GT(planted, kGraphs / 3);
}

}  // namespace speedrun::testing::program_test
