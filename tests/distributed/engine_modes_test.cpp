// The tested modes cover every pair of choices that configs accept.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <set>

#include "kernels/device/error.h"
#include "tests/distributed/engine.h"

namespace speedrun::testing::engine_modes_test {

using Pair = std::array<size_t, 4>;  // choice, its value; other choice, its value

// The choices that the configs have, not the ones of the words.
TEST(EngineModesTest, ModesCoverEveryPair) {
    std::set<Pair> met;
    const std::vector<Choices> modes = combined_modes(false);
    for (const Choices& mode : modes) {
        const Choices choices = choices_of(mode_of(words_of(mode)));
        for (size_t a = 0; a < choices.size(); ++a)
            for (size_t b = a + 1; b < choices.size(); ++b) met.insert({a, choices[a], b, choices[b]});
    }
    size_t possible = 0;
    for (size_t a = 0; a < kChoices.size(); ++a) {
        for (size_t b = a + 1; b < kChoices.size(); ++b) {
            for (size_t of_a = 0; of_a < kChoices[a].size(); ++of_a) {
                for (size_t of_b = 0; of_b < kChoices[b].size(); ++of_b) {
                    const bool occurs = met.count({a, of_a, b, of_b}) > 0;
                    EXPECT_EQ(occurs, !refused(a, of_a, b, of_b))
                        << kChoices[a][of_a] << " with " << kChoices[b][of_b];
                    possible += occurs;
                }
            }
        }
    }
    EXPECT_EQ(possible, met.size()) << "a mode has a value that kChoices lacks";
    std::cout << possible << " pairs in " << modes.size() << " modes, of " << combined_modes(true).size()
              << " legal modes\n";
}

TEST(EngineModesTest, NamesDiffer) {
    std::set<std::string> names;
    const std::vector<Choices> modes = combined_modes(true);
    for (const Choices& mode : modes) names.insert(name_of(words_of(mode)));
    EXPECT_EQ(names.size(), modes.size());
}

// The product of the choices that depend on each other.
TEST(EngineModesTest, ConfigsRefuseTheRefusedPairs) {
    constexpr size_t kDependent = 7;  // strategy to reshard
    each_combination([](const Choices& choices) {
        bool legal = true;
        for (size_t last = 1; last <= choices.size(); ++last)
            legal = legal &&
                    !last_is_refused(Choices(choices.begin(), choices.begin() + static_cast<int64_t>(last)));
        if (choices.size() < kDependent) return true;
        const std::string words = words_of(choices);
        if (legal)
            EXPECT_NO_THROW(mode_of(words).ranks()) << words;
        else
            EXPECT_THROW(mode_of(words).ranks(), Error) << words;
        return false;
    });
}

}  // namespace speedrun::testing::engine_modes_test
