// What travels between ranks beside other work: nothing else is in its memory while it does, and neighbours that could hand
// over their rows in pieces do.
#include "train/model/graph/transfers.h"

#include <gtest/gtest.h>

#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/nodes/fusions.h"

namespace speedrun::testing {
namespace transfers_test {

TEST(RowPiecesTest, HaveEveryRowOnce) {
    for (const int64_t shares : {1, 3}) {
        for (const int64_t pieces : {1, 2, 4, 7}) {
            const RowPieces rows{.rows = 21 * shares, .shares = shares, .pieces = pieces};
            std::vector<int> met(static_cast<size_t>(rows.rows));
            for (int64_t piece = 0; piece < pieces; ++piece) {
                int64_t count = 0;
                for (int64_t share = 0; share < shares; ++share) {
                    const RowSpan span = rows.span({piece, share});
                    EXPECT_EQ(span.first / rows.share(), share);
                    for (int64_t row = span.first; row < span.first + span.count; ++row)
                        ++met[static_cast<size_t>(row)];
                    count += span.count;
                }
                EXPECT_EQ(count, rows.rows_of(piece));
                EXPECT_LE(count, rows.most_rows());
            }
            EXPECT_EQ(met, std::vector<int>(met.size(), 1));
        }
    }
}

class TransfersTest : public ::testing::TestWithParam<std::tuple<bool, bool, Checkpointing>> {
  protected:
    static constexpr int64_t kLayers = 3;

    bool sequence() const { return std::get<0>(GetParam()); }
    bool gated() const { return std::get<1>(GetParam()); }
    Checkpointing checkpointing() const { return std::get<2>(GetParam()); }

    Config config() const {
        return parse_config(fmt::format(R"({{
            "model": {{"preset": "none", "model_dim": 48, "vocab_size": 64,
                "tables": {{"embed": {{"init": {{"type": "normal", "value": 1}}}}}},
                "input": [{{"type": "table", "table": "embed"}}, {{"type": "norm"}}],
                "layers": {{"count": {}, "each": {{"mix": {{}}, "attention": {{"heads": 4{}}}, "mlp": {{}}}}}},
                "output": [{{"type": "norm"}}]}},
            "batch": {{"sequence_length": 16}},
            "optimizers": {{"groups": [{{"params": ["*"]}}]}}}})",
                                        kLayers, gated() ? R"(, "gate": {})" : ""),
                            "test", {});
    }
    void SetUp() override {
        const BatchShape batch{.tokens = 64,
                               .sequence_length = 16,
                               .tensor = {.size = 2, .index = 1, .sequence = sequence(), .chunks = 4}};
        model_.emplace(build_model(config().model, batch, {.logit_rows = 64}));
        Retained retained(static_cast<size_t>(model_->graph.num_units()));
        if (checkpointing() == Checkpointing::full)
            for (int64_t block = 1; block < kLayers; ++block)
                retained[static_cast<size_t>(block)] = Cost::input;
        program_ = derive_program(model_->graph, fusions_, retained, DType::f32);
    }

    // Stated anew, so that a place that the derivation forgets is not forgotten here too.
    static std::set<int> touched(const Step& step) {
        std::set<int> all;
        const auto add = [&](const Place& place) {
            if (place.storage >= 0) all.insert(place.storage);
        };
        for (const NodeCall& call : step.calls) {
            for (const auto* places :
                 {&call.reads, &call.writes, &call.scratch, &call.orders, &call.written_gradients})
                for (const Place& place : *places) add(place);
            for (const GradientPlace& gradient : call.read_gradients) add(gradient.place);
            for (const GradientPlace& gradient : call.read_gradients) add(gradient.other);
        }
        for (const Place& place : {step.target, step.term, step.other}) add(place);
        return all;
    }
    bool share_memory_of(int a, int b) const {
        const Storage &x = program_.storages[static_cast<size_t>(a)],
                      &y = program_.storages[static_cast<size_t>(b)];
        if (a == b || x.held != kNoValue || y.held != kNoValue) return false;
        const int64_t of_x = lodging_.offset[static_cast<size_t>(a)],
                      of_y = lodging_.offset[static_cast<size_t>(b)];
        return of_x < of_y + y.bytes && of_y < of_x + x.bytes;
    }
    // Steps of one pass, in which everything that begins to travel comes.
    void expect_alone(const std::vector<Step>& steps) {
        lodging_ = share_memory(program_);
        for (size_t i = 0; i < steps.size(); ++i) {
            if (steps[i].transfer < 0) continue;
            const int transfer = steps[i].transfer;
            const std::set<int> travels = touched(steps[i]);
            bool over = false;
            for (size_t at = steps[i].handed_over ? i - 1 : i; at < steps.size() && !over; ++at) {
                const Step& step = steps[at];
                const bool awaited = std::count(step.awaits.begin(), step.awaits.end(), transfer) > 0;
                over = awaited || step.arrives == transfer;
                const std::set<int> used = touched(step);
                for (const int there : used) {
                    for (const int travelling : travels)
                        EXPECT_FALSE(share_memory_of(there, travelling))
                            << program_.storages[static_cast<size_t>(there)].name << " where "
                            << program_.storages[static_cast<size_t>(travelling)].name << " travels";
                    // Only the node that hands it over, and the one that reads it, know what has come.
                    const bool waits = over || at <= i;
                    EXPECT_TRUE(waits || travels.count(there) == 0)
                        << program_.storages[static_cast<size_t>(there)].name << " while it travels";
                }
            }
            EXPECT_TRUE(over) << "nobody waits for transfer " << transfer;
        }
    }

    const Fusions fusions_ = model_fusions();
    std::optional<ModelGraph> model_;
    Program program_;
    Lodging lodging_;
};

TEST_P(TransfersTest, NothingElseIsInTheirMemory) {
    expect_alone(program_.forward);
    expect_alone(program_.backward);
}

TEST_P(TransfersTest, ProductsTakeAndGivePieces) {
    int given = 0, taken = 0, given_back = 0, taken_back = 0;
    for (const Step& step : program_.forward) {
        given += step.departs >= 0;
        taken += step.arrives >= 0;
    }
    for (const Step& step : program_.backward) {
        if (step.kind != Step::Kind::backward) continue;
        given_back += step.departs >= 0;
        taken_back += step.arrives >= 0;
    }
    // Attention's gate reads the same rows as its first product, and in backward adds its part of their gradient.
    const int with_first = gated() ? kLayers : 2 * kLayers;
    EXPECT_EQ(given, 2 * kLayers);
    EXPECT_EQ(taken, sequence() ? with_first : 0);
    EXPECT_EQ(given_back, with_first);
    EXPECT_EQ(taken_back, sequence() ? 2 * kLayers : 0);
}

INSTANTIATE_TEST_SUITE_P(Models, TransfersTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(Checkpointing::none, Checkpointing::full)));

}  // namespace transfers_test
}  // namespace speedrun::testing
