// The tested modes cover every pair of choices that configs accept.
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "tests/distributed/engine.h"

namespace speedrun::testing {
namespace engine_modes_test {

enum Factor {
    strategy,
    replicate,
    shard,
    accumulation,
    muon,
    launch,
    step_order,
    optimizer_step,
    accumulate,
    reshard,
    every,
    family,
    clip,
    graphs
};
constexpr auto kForward = static_cast<int>(StepOrder::forward);
constexpr auto kInBackward = static_cast<int>(OptimizerStep::in_backward);
constexpr auto kAfterBackward = static_cast<int>(Launch::after_backward);
constexpr auto kLocal = static_cast<int>(Accumulate::local);
constexpr auto kScatter = static_cast<int>(Accumulate::reduce_scatter);
constexpr int kDdp = 0, kZero1 = 1, kZero2 = 2, kZero3 = 3;

const std::vector<int> kValues[kNumChoices] = {{kDdp, kZero1, kZero2, kZero3},  // strategy
                                               {1, 2},                          // replicate
                                               {2, 3, 4, 5, 7, 8},              // shard
                                               {1, 3},                          // accumulation
                                               {0, 1},                          // muon
                                               {0, 1},                          // launch
                                               {0, 1},                          // step_order
                                               {0, 1},                          // optimizer_step
                                               {0, 1},                          // accumulate
                                               {0, 1, 2},                       // reshard
                                               {1, 2},                          // every
                                               {0, 1, 2, 3},                    // family
                                               {0, 1},                          // clip
                                               {0, 1}};                         // graphs

// True if resolve_sharing refuses choice a with value of_a together with choice b with value of_b.
bool refused(int a, int of_a, int b, int of_b) {
    if (a == strategy && b == accumulate)
        return of_a == kZero2 ? of_b == kLocal : (of_a != kZero3 && of_b == kScatter);
    if (a == strategy && b == reshard) return of_a != kZero3 && of_b != static_cast<int>(Reshard::no);
    if (a == launch && b == optimizer_step) return of_a == kAfterBackward && of_b == kInBackward;
    if (a == step_order && b == optimizer_step) return of_a == kForward && of_b == kInBackward;
    return a == optimizer_step && b == clip && of_a == kInBackward && of_b == 1;
}

using Pair = std::array<int, 4>;  // choice, its value; other choice, its value

TEST(EngineModesTest, EveryPairOccurs) {
    std::set<Pair> met;
    const std::vector<Mode> modes = combined_modes(false);
    for (const Mode& mode : modes) {
        const Choices choices = choices_of(mode);
        for (int a = 0; a < static_cast<int>(kNumChoices); ++a)
            for (int b = a + 1; b < static_cast<int>(kNumChoices); ++b)
                met.insert({a, choices[a], b, choices[b]});
    }
    size_t possible = 0;
    for (int a = 0; a < static_cast<int>(kNumChoices); ++a) {
        for (int b = a + 1; b < static_cast<int>(kNumChoices); ++b) {
            for (const int of_a : kValues[a]) {
                for (const int of_b : kValues[b]) {
                    const bool occurs = met.count({a, of_a, b, of_b}) > 0;
                    EXPECT_EQ(occurs, !refused(a, of_a, b, of_b))
                        << "choice " << a << ": " << of_a << ", choice " << b << ": " << of_b;
                    possible += occurs;
                }
            }
        }
    }
    EXPECT_EQ(possible, met.size()) << "a mode has a value that kValues lacks";
    std::cout << possible << " pairs in " << modes.size() << " modes, of " << combined_modes(true).size()
              << " legal modes\n";
}

// Rows divide by the mode's shares, and names are unique.
TEST(EngineModesTest, AllAreLegal) {
    std::set<std::string> names;
    const std::vector<Mode> modes = combined_modes(true);
    for (const Mode& mode : modes) {
        names.insert(name_of(mode));
        EXPECT_EQ(mode.rows % (mode.ranks() * mode.accumulation), 0);
    }
    EXPECT_EQ(names.size(), modes.size());
}

}  // namespace engine_modes_test
}  // namespace speedrun::testing
