// Accumulation over microbatches, and gradient announcements: each parameter once per microbatch, after its last
// contribution, in an order that lets communication and optimizer overlap with backward.
// Covers: train/sharding/pass_tracker.cpp
#include <numeric>

#include <algorithm>

#include "tests/errors.h"
#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"

namespace speedrun::testing::model_order_test {

constexpr int64_t kSequence = 8;

ModelConfig model_config(const char* preset, int64_t layers = 3) {
    const bool modern = std::string(preset) == "modern";
    const ModelSettings more = {kMix, "model.layers.each.attention.window=5"};
    const int64_t values = std::min<int64_t>(layers, 2);
    return model_of(
        preset, {.layers = layers, .width = 32, .heads = 2, .vocabulary = 100},
        modern
            ? together(
                  {with_tables({.layers = layers, .values = values, .max_ngram = 3, .ngram_rows = 60}), more})
            : ModelSettings());
}

// Gradients of a batch of `rows` rows, in microbatches of `rows_at_once` rows.
std::vector<Values> gradients_of(const ModelConfig& model, const HostBatch& batch, int64_t rows,
                                 int64_t rows_at_once, int64_t sequence_length, const MemoryConfig& memory) {
    ModelHarness h(model, rows_at_once * sequence_length, sequence_length, DType::f32, {}, memory);
    h.randomize(0.2, 5);
    h.tracker.begin_step();
    for (int64_t row = 0; row < rows; row += rows_at_once) {
        h.backward(batch.rows(row, rows_at_once, sequence_length), 0.05f);
    }
    std::vector<Values> gradients;
    for (const Parameter& p : h.table().all()) gradients.push_back(h.gradient(p));
    return gradients;
}

void expect_accumulation_is_exact(const ModelConfig& model, int64_t rows, int64_t sequence_length,
                                  const MemoryConfig& memory = {}) {
    const HostBatch batch = random_batch(model, rows, sequence_length, true, 1);
    const std::vector<Values> whole = gradients_of(model, batch, rows, rows, sequence_length, memory);
    const std::vector<Values> halves = gradients_of(model, batch, rows, rows / 2, sequence_length, memory);
    const ParameterTable table = parameters_of(model, sequence_length);
    for (const Parameter& p : table.all()) {
        // Both sum the same terms in another order: some tens of roundings of 6e-8, relative to the largest element.
        const double error = largest_of(difference_of(halves[p.id], whole[p.id]));
        EXPECT_LT(error / largest_of(whole[p.id]), 5e-6) << p.name;
    }
}

TEST(AccumulationTest, TwoMicrobatchesEqualOneDoubleBatch) {
    for (const char* preset : {"gpt2", "modern"})
        expect_accumulation_is_exact(model_config(preset), 4, kSequence);
}

// A batch must contain the n-gram rows of all sizes that the model embeds.
TEST(BatchTest, NgramsAreThoseOfTheModel) {
    const ModelConfig model = model_config("modern");
    ModelHarness h(model, 2 * kSequence, kSequence);
    const HostBatch ids = random_batch(model, 2, kSequence, true, 1);
    Batch batch{
        .tokens = ids.tokens, .targets = ids.targets, .positions = ids.positions, .first_key = ids.first_key};
    EXPECT_EQ(h.model.description().columns().size(), 4u + 2u);
    EXPECT_THROW(h.model.put_batch(batch), Error);
    complete(batch, h.model.description().columns(), {.sequence_length = kSequence});
    h.model.put_batch(batch);
    batch.columns.at("3-grams").pop_back();
    EXPECT_THROW(h.model.put_batch(batch), Error);
    batch.columns.erase("3-grams");
    EXPECT_THROW(h.model.put_batch(batch), Error);
}

// The head runs in two chunks on the whole batch and in one on each half.
TEST(AccumulationTest, HeadInChunksEqualsHeadAtOnce) {
    for (const char* preset : {"gpt2", "modern"}) {
        const ModelConfig model = model_config(preset, 1);
        const MemoryConfig memory{.logits_at_once = 64 * model.padded_vocab_size()};
        ModelHarness whole(model, 128, 16, DType::f32, {}, memory);
        ASSERT_EQ(whole.model.logit_rows(), 64) << "the head does not run in chunks";
        expect_accumulation_is_exact(model, 8, 16, memory);
    }
}

// ---- announcements

struct Announcement {
    const Parameter* parameter;
    Values gradient;  // at the announcement
};

// Reads each gradient at its announcement, after all work that backward has enqueued up to then.
class Listener final : public PassTracker {
  public:
    explicit Listener(ModelHarness& harness)
        : PassTracker(harness.table(), harness.gradients), harness_(harness) {
        begin_step();
    }

    std::vector<Announcement> heard;

  private:
    void on_grad_ready(const Parameter& p) override { heard.push_back({&p, harness_.gradient(p)}); }

    ModelHarness& harness_;
};

std::vector<Announcement> announcements_of(ModelHarness& h, const HostBatch& batch) {
    Listener listener(h);
    h.model.track(&listener);
    h.backward(batch, 0.05f);
    h.model.track(&h.tracker);
    return listener.heard;
}

class StagesEntered final : public PassTracker {
  public:
    StagesEntered(const ModelHarness& harness, const Stages& stages)
        : PassTracker(harness.table(), harness.gradients), stages_(stages) {}
    void enter(int unit, Pass pass) override { entered_stages.push_back(stages_.of(unit, pass)); }

    std::vector<int> entered_stages;

  private:
    const Stages& stages_;
};

class AnnouncementTest : public ::testing::TestWithParam<const char*> {
  protected:
    AnnouncementTest() : model_(model_config(GetParam())), harness_(model_, 4 * kSequence, kSequence) {
        harness_.randomize(0.2, 7);
        harness_.tracker.begin_step();
    }
    HostBatch batch(uint64_t seed) const { return random_batch(model_, 4, kSequence, true, seed); }

    ModelConfig model_;
    ModelHarness harness_;
};

INSTANTIATE_TEST_SUITE_P(Presets, AnnouncementTest, ::testing::Values("gpt2", "modern"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(AnnouncementTest, EachParameterOncePerMicrobatchAndWithNothingToCome) {
    for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
        const std::vector<Announcement> heard = announcements_of(harness_, batch(microbatch));
        std::map<int, int> times;
        for (const Announcement& a : heard) {
            ++times[a.parameter->id];
            EXPECT_EQ(harness_.gradient(*a.parameter), a.gradient)
                << a.parameter->name << " changed after it was announced, microbatch " << microbatch;
        }
        for (const Parameter& p : harness_.table().all()) EXPECT_EQ(times[p.id], 1) << p.name;
    }
}

// Announcements are in reverse order of units. One exception: a value table belongs to the embeddings (unit 0) but is
// complete after the only block that reads it.
TEST_P(AnnouncementTest, ReverseOrderOfUnits) {
    const std::vector<Announcement> heard = announcements_of(harness_, batch(1));
    int unit = harness_.table().num_units() - 1;
    for (const Announcement& a : heard) {
        EXPECT_LE(a.parameter->unit(), unit)
            << a.parameter->name << " came after a parameter of an earlier unit";
        unit = a.parameter->unit();
    }
    EXPECT_EQ(heard.back().parameter->name, "embed.weight");  // a tied head contributes to it first
    EXPECT_EQ(heard.front().parameter->name, model_.parts.head.tied() ? "final_norm.gain" : "head.weight");
}

TEST_P(AnnouncementTest, UnitsAreEnteredInOrderBeforeTheirUse) {
    const Stages stages(harness_.table().num_units());
    std::vector<int> expected(static_cast<size_t>(stages.count()));
    std::iota(expected.begin(), expected.end(), 0);
    StagesEntered tracker(harness_, stages);
    std::vector<int>& entered = tracker.entered_stages;
    harness_.model.track(&tracker);
    harness_.forward_loss(batch(1));
    EXPECT_EQ(entered, std::vector<int>(expected.begin(), expected.begin() + stages.count() / 2));
    entered.clear();
    harness_.backward(batch(1), 1);
    EXPECT_EQ(entered, expected);
    harness_.model.track(&harness_.tracker);
}

TEST_P(AnnouncementTest, BrokenPromisesAreNoticed) {
    const Parameter& p = harness_.table()[0];
    PassTracker& tracker = harness_.tracker;
    EXPECT_THROW(tracker.grad_ready(p), Error) << "before any contribution";
    EXPECT_THROW(tracker.param_free(p), Error) << "before its gradient";
    EXPECT_FALSE(tracker.begin_gradient(p).adds);
    EXPECT_TRUE(tracker.begin_gradient(p).adds);
    tracker.grad_ready(p);
    EXPECT_THROW(tracker.grad_ready(p), Error) << "twice";
    const std::string message = error_of(ExitCode::failure, [&] { tracker.end_backward(); });
    EXPECT_EQ(message.find(" " + p.name), std::string::npos) << message;
    EXPECT_THAT(message, HasSubstr(harness_.table()[1].name));
}

}  // namespace speedrun::testing::model_order_test
