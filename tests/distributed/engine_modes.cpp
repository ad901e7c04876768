// Combinations of config choices: the product of all legal choices, or a small subset with every pair of choices
// (pairwise covering, built greedily: Cohen, Dalal, Fredman, Patton 1997).
#include <algorithm>
#include <random>
#include <string>

#include "tests/distributed/engine.h"
#include "train/sharding/placement.h"

namespace speedrun::testing {
namespace {

enum Choice : size_t {
    strategy,
    launch,
    step_order,
    optimizer_step,
    clip,
    accumulate,
    reshard,
    replicate,
    shard,
    accumulation,
    muon,
    model,
    every,
    graphs
};
constexpr size_t kDdp = 0, kZero1 = 1, kZero2 = 2, kZero3 = 3;
constexpr size_t kLocal = 0, kScatter = 1;

// Pairs of choices as bits.
class Pairs {
  public:
    void add(const Choices& choices) {
        visit(choices, [&](size_t bit) { bits_[bit] = true; });
    }
    // Returns the number of these pairs in the mode.
    int count(const Choices& choices) const {
        int result = 0;
        visit(choices, [&](size_t bit) { result += bits_[bit] ? 1 : 0; });
        return result;
    }
    void remove(const Choices& choices) {
        visit(choices, [&](size_t bit) { bits_[bit] = false; });
    }

  private:
    static constexpr size_t kValues = 16;  // a choice has values 0 to 15
    static void visit(const Choices& choices, const auto& to) {
        for (size_t i = 0; i < choices.size(); ++i)
            for (size_t j = 0; j < i; ++j)
                to(((i * choices.size() + j) * kValues + choices[i]) * kValues + choices[j]);
    }

    std::vector<bool> bits_ = std::vector<bool>(kChoices.size() * kChoices.size() * kValues * kValues);
};

void extend(Choices& choices, const Visit& visit) {
    if (choices.size() == kChoices.size()) return;
    for (size_t value = 0; value < kChoices[choices.size()].size(); ++value) {
        choices.push_back(value);
        if (visit(choices)) extend(choices, visit);
        choices.pop_back();
    }
}

}  // namespace

const std::vector<std::vector<std::string>> kChoices = {
    {"ddp", "zero1", "zero2", "zero3"},
    {"", " after_backward"},
    {"", " forward"},
    {"", " in_backward"},
    {"", " clip=0.2"},
    {" accumulate=local", " accumulate=reduce_scatter"},
    {" reshard=false", " reshard=true", " reshard=except_last"},
    {" 1x", " 2x"},
    {"2", "3", "4", "5", "7", "8"},
    {"", " /3"},
    {"", " muon"},
    {"", " model=modern", " model=gpt2", " model=parts"},
    {"", " every=2"},
    {"", " graphs"}};

// Defaults of the strategy are left out.
std::string words_of(const Choices& choices) {
    const StrategyRow& row = row_of(static_cast<Strategy>(choices[strategy]));
    std::string words;
    for (size_t i = 0; i < choices.size(); ++i) {
        const auto value = choices[i];
        if (i == accumulate && value == static_cast<size_t>(row.default_accumulate)) continue;
        if (i == reshard && value == static_cast<size_t>(row.default_reshard)) continue;
        words += kChoices[i][value];
    }
    return words;
}

Choices choices_of(const Mode& mode) {
    const Ranks ranks = mode.ranks();
    const Sharing& sharing = ranks.sharing();
    const OptimizersConfig& optimizers = mode.config.optimizers;
    const auto index_of = [](Choice choice, const std::string& word) {
        const std::vector<std::string>& words = kChoices[choice];
        return static_cast<size_t>(std::find(words.begin(), words.end(), word) - words.begin());
    };
    size_t family = 0;
    for (size_t i = 1; i < kChoices[model].size(); ++i)
        if (mode.has(kChoices[model][i].substr(1))) family = i;
    return {static_cast<size_t>(sharing.strategy),
            static_cast<size_t>(sharing.launch),
            static_cast<size_t>(sharing.step_order),
            static_cast<size_t>(sharing.optimizer_step),
            optimizers.clip > 0,
            static_cast<size_t>(sharing.accumulate.value()),
            static_cast<size_t>(sharing.reshard_after_forward.value()),
            index_of(replicate, fmt::format(" {}x", mode.config.parallel.replicate)),
            index_of(shard, mode.config.parallel.shard),
            mode.accumulation() == 3,
            optimizers.groups[0].type == OptimizerKind::muon,
            family,
            optimizers.groups[1].every == 2,
            mode.graphs};
}

bool refused(size_t a, size_t of_a, size_t b, size_t of_b) {
    if (a == strategy && b == accumulate)
        return of_a == kZero2 ? of_b == kLocal : (of_a != kZero3 && of_b == kScatter);
    if (a == strategy && b == reshard) return of_a != kZero3 && of_b != static_cast<size_t>(Reshard::no);
    const bool steps_in_backward =
        ((a == launch || a == step_order) && b == optimizer_step) || (a == optimizer_step && b == clip);
    return steps_in_backward && of_a == 1 && of_b == 1;
}

bool last_is_refused(const Choices& choices) {
    const size_t last = choices.size() - 1;
    for (size_t a = 0; a < last; ++a)
        if (refused(a, choices[a], last, choices[last])) return true;
    return false;
}

void each_combination(const Visit& visit) {
    Choices choices;
    extend(choices, visit);
}

std::vector<Choices> combined_modes(bool all) {
    std::vector<Choices> product;
    each_combination([&](const Choices& choices) {
        if (last_is_refused(choices)) return false;
        if (choices.size() == kChoices.size()) product.push_back(choices);
        return true;
    });
    if (all) return product;
    Pairs missing;
    for (const Choices& mode : product) missing.add(mode);
    std::vector<Choices> modes;
    std::mt19937_64 random(1);
    constexpr int kCandidates = 100;
    // Greedy: the candidate with the most missing pairs, among random ones. The result is slightly larger than the minimum.
    for (int drawn_in_vain = 0; drawn_in_vain < kCandidates;) {
        const Choices* best = nullptr;
        int most = 0;
        for (int i = 0; i < kCandidates; ++i) {
            const Choices& mode = product[random() % product.size()];
            if (const int pairs = missing.count(mode); pairs > most) {
                most = pairs;
                best = &mode;
            }
        }
        drawn_in_vain = best ? 0 : drawn_in_vain + 1;
        if (!best) continue;
        missing.remove(*best);
        modes.push_back(*best);
    }
    return modes;
}

}  // namespace speedrun::testing
