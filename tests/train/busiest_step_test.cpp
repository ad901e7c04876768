// Peak of shared memory, compared with byte counts derived by hand.
#include "train/model/graph/busiest_step.h"

#include <gtest/gtest.h>

#include "train/model/nodes/embedding.h"
#include "train/model/nodes/head.h"
#include "train/model/nodes/linear.h"

namespace speedrun::testing::busiest_step_test {

std::vector<std::string> rows_of(const BusiestStep& busiest) {
    std::vector<std::string> rows;
    for (const BusiestStep::Kind& kind : busiest.kinds)
        rows.push_back(fmt::format("{} x {}: {}", kind.name, kind.count, kind.bytes));
    return rows;
}

TEST(BusiestStepTest, Buffers) {
    const std::vector<NamedBuffer> named = {
        {"a", {.bytes = 10, .first = 0, .last = 1}}, {"b", {.bytes = 30, .first = 1, .last = 3}},
        {"a", {.bytes = 20, .first = 1, .last = 1}}, {"c", {.bytes = 30, .first = 3, .last = 4}},
        {"d", {.bytes = 0, .first = 0, .last = 4}},
    };
    const BusiestStep busiest = busiest_step(named);
    EXPECT_EQ(busiest.number, 1);  // step 3 ties; the first one is reported
    EXPECT_EQ(busiest.bytes, 60);
    EXPECT_EQ(rows_of(busiest), (std::vector<std::string>{"a x 2: 30", "b x 1: 30"}));

    std::vector<BufferRequest> requests;
    for (const NamedBuffer& one : named) requests.push_back(one.request);
    EXPECT_EQ(first_fit(requests, 1).bytes, busiest.bytes);
    EXPECT_EQ(busiest_step({}).number, -1);
}

// Two blocks of two matmuls, 4 tokens in f32: a value of width 4 has 64 bytes, one of width 8 has 128.
struct TwoBlocks {
    NodeGraph graph;

    explicit TwoBlocks(int64_t vocabulary) {
        const Extent tokens{Dimension::tokens, 4}, width{Dimension::width, 4}, hidden{Dimension::hidden, 8};
        const ValueId ids = graph.value("tokens", Element::ids, {tokens}, Holder::batch);
        ValueId x = graph.value("embedding", Element::real, {tokens, width});
        ParameterId parameter = 0;
        graph.add(std::make_unique<Embedding>(
            Embedding::Ports{.out = x, .tokens = ids, .table = parameter++, .table_rows = vocabulary}));
        for (int block = 0; block < 2; ++block) {
            const std::string prefix = fmt::format("blocks.{}.", block);
            graph.begin_unit();
            graph.name_unit(fmt::format("block {}", block), prefix);
            const ValueId up = graph.value(prefix + "up", Element::real, {tokens, hidden});
            const ValueId down = graph.value(prefix + "down", Element::real, {tokens, width});
            graph.add(std::make_unique<Linear>(Linear::Ports{.y = up, .x = x, .weight = parameter++}));
            graph.add(std::make_unique<Linear>(Linear::Ports{.y = down, .x = up, .weight = parameter++}));
            x = down;
        }
        graph.begin_unit();
        const ValueId losses = graph.value("losses", Element::f32, {tokens}, Holder::model);
        graph.add(
            std::make_unique<Head>(Head::Ports{.losses = losses, .x = x, .targets = ids, .weight = parameter},
                                   HeadOptions{.num_tokens = 4,
                                               .logit_rows = 1,
                                               .vocab_size = vocabulary,
                                               .padded_vocab_size = vocabulary}));
    }
    BusiestStep busiest(const Retained& retained = Retained(4)) const {
        return busiest_step_of(derive_program(graph, {}, retained, DType::f32), graph);
    }
};

// Steps 0 to 4 are forward, 5 the loss, 6 the head's backward.
TEST(BusiestStepTest, BackwardOfAProduct) {
    const BusiestStep busiest = TwoBlocks(8).busiest();
    EXPECT_EQ(busiest.number, 7);
    EXPECT_EQ(busiest.name, "backward of blocks.1.down (linear 8 -> 4)");
    EXPECT_EQ(busiest.bytes, 64 + 2 * 128 + 64 + 64 + 128);
    EXPECT_EQ(rows_of(busiest),
              (std::vector<std::string>{"up x 2: 256", "gradient of up x 1: 128", "down x 1: 64",
                                        "embedding x 1: 64", "gradient of down x 1: 64"}));
}

// 160 bytes of logits (40 values) plus the head's input exceed the gradient of `up`.
TEST(BusiestStepTest, BackwardOfTheHead) {
    const BusiestStep busiest = TwoBlocks(40).busiest();
    EXPECT_EQ(busiest.number, 6);
    EXPECT_EQ(busiest.name, "backward of losses (head 4 -> 40, not tied, cross entropy)");
    EXPECT_EQ(busiest.bytes, 64 + 2 * 128 + 2 * 64 + 64 + 160);
    EXPECT_EQ(rows_of(busiest)[1], "scratch of head, loss x 1: 160");
}

// Block 0 keeps only its input, so `up` of block 1 is the only one alive at step 7.
TEST(BusiestStepTest, WhatIsNotKept) {
    Retained retained(4);
    retained[1] = Cost::input;
    const BusiestStep busiest = TwoBlocks(8).busiest(retained);
    EXPECT_EQ(busiest.number, 7);
    EXPECT_EQ(busiest.bytes, 64 + 64 + 128 + 64 + 128);
    EXPECT_EQ(rows_of(busiest)[1], "up x 1: 128");
}

// y = x, with 1600 bytes of scratch.
class Wide final : public Node {
  public:
    Wide(ValueId y, ValueId x) : Node(Cost::pointwise) {
        writes({.value = y});
        reads({.value = x, .gradient = Gives::written});
        needs({.rows = 4, .columns = 100, .forward = true, .backward = false});
    }
    const char* kind() const override { return "wide"; }
    void forward(const Call& /*call*/) const override {}
    void backward(const Call& /*call*/) const override {}
};

// Backward recomputes `y` while the gradient of z is alive.
TEST(BusiestStepTest, ForwardAgain) {
    NodeGraph graph;
    const Extent tokens{Dimension::tokens, 4}, width{Dimension::width, 4};
    const ValueId ids = graph.value("tokens", Element::ids, {tokens}, Holder::batch);
    const ValueId x = graph.value("embedding", Element::real, {tokens, width});
    const ValueId losses = graph.value("losses", Element::f32, {tokens}, Holder::model);
    graph.add(
        std::make_unique<Embedding>(Embedding::Ports{.out = x, .tokens = ids, .table = 0, .table_rows = 8}));
    graph.begin_unit();
    const ValueId y = graph.value("y", Element::real, {tokens, width});
    const ValueId z = graph.value("z", Element::real, {tokens, width});
    graph.add(std::make_unique<Wide>(y, x));
    graph.add(std::make_unique<Linear>(Linear::Ports{.y = z, .x = y, .weight = 1}));
    graph.begin_unit();
    graph.add(std::make_unique<Head>(
        Head::Ports{.losses = losses, .x = z, .targets = ids, .weight = 2},
        HeadOptions{.num_tokens = 4, .logit_rows = 1, .vocab_size = 8, .padded_vocab_size = 8}));
    const BusiestStep busiest = busiest_step_of(
        derive_program(graph, {}, {std::nullopt, Cost::input, std::nullopt}, DType::f32), graph);
    EXPECT_EQ(busiest.name, "forward again of y (wide)");
    EXPECT_EQ(rows_of(busiest), (std::vector<std::string>{"scratch of wide x 1: 1600", "embedding x 1: 64",
                                                          "gradient of z x 1: 64", "y x 1: 64"}));
}

}  // namespace speedrun::testing::busiest_step_test
