// Combinations of config choices: the product of all legal choices, or a small subset with every pair of choices
// (pairwise covering, built greedily: Cohen, Dalal, Fredman, Patton 1997).
#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "kernels/device/error.h"
#include "tests/distributed/engine.h"

namespace speedrun::testing {
namespace {

constexpr int kSizes[] = {2, 3, 4, 5, 7, 8};
constexpr std::array kFamilies{"recipe", "modern", "gpt2", "parts"};

// Few distinct row counts: each needs its own run on one rank.
int64_t rows_for(int64_t shares) {
    for (const int64_t rows : {24, 30, 36, 42, 48}) {
        if (rows % shares == 0) return rows;
    }
    throw_internal("no number of rows is a multiple of {}", shares);
}

bool legal(const Mode& mode) {
    if (mode.clip > 0 && mode.optimizer_step == OptimizerStep::in_backward) return false;
    try {
        sharing_of(mode);
        return true;
    } catch (const Error&) {
        return false;
    }
}

// Legal plans of two ranks. Defaults of a strategy are left unset.
std::vector<Mode> legal_plans() {
    std::vector<Mode> plans;
    const auto add = [&](Mode mode, Accumulate accumulate, Reshard reshard) {
        const StrategyRow& row = row_of(mode.strategy);
        if (accumulate != row.default_accumulate) mode.accumulate = accumulate;
        if (reshard != row.default_reshard) mode.reshard = reshard;
        if (legal(mode)) plans.push_back(mode);
    };
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        for (const Launch launch : {Launch::ready, Launch::after_backward}) {
            for (const StepOrder order : {StepOrder::reverse, StepOrder::forward}) {
                for (const OptimizerStep step : {OptimizerStep::after_backward, OptimizerStep::in_backward}) {
                    for (const double clip : {0.0, 0.2}) {
                        Mode mode{strategy, 1, 2, 1, OptimizerKind::adamw, launch, DType::f32, clip};
                        mode.step_order = order;
                        mode.optimizer_step = step;
                        for (const Accumulate accumulate : {Accumulate::local, Accumulate::reduce_scatter}) {
                            for (const Reshard reshard : {Reshard::yes, Reshard::no, Reshard::except_last})
                                add(mode, accumulate, reshard);
                        }
                    }
                }
            }
        }
    }
    return plans;
}

std::vector<Mode> whole_product() {
    std::vector<Mode> modes;
    const auto add = [&](Mode mode) {
        for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::muon}) {
            for (const char* family : kFamilies) {
                for (const int64_t every : {1, 2}) {
                    for (const bool graphs : {false, true}) {
                        mode.optimizer = optimizer;
                        mode.family = family;
                        mode.every = every;
                        mode.graphs = graphs;
                        modes.push_back(mode);
                    }
                }
            }
        }
    };
    for (Mode mode : legal_plans()) {
        for (const int replicate : {1, 2}) {
            for (const int shard : kSizes) {
                for (const int64_t accumulation : {1, 3}) {
                    mode.replicate = replicate;
                    mode.shard = shard;
                    mode.accumulation = accumulation;
                    mode.rows = rows_for(mode.ranks() * accumulation);
                    add(mode);
                }
            }
        }
    }
    return modes;
}

// Pairs of choices as bits.
class Pairs {
  public:
    void add(const Mode& mode) {
        visit(mode, [&](size_t bit) { bits_[bit] = true; });
    }
    // Returns the number of these pairs in the mode.
    int count(const Mode& mode) const {
        int result = 0;
        visit(mode, [&](size_t bit) { result += bits_[bit] ? 1 : 0; });
        return result;
    }
    void remove(const Mode& mode) {
        visit(mode, [&](size_t bit) { bits_[bit] = false; });
    }

  private:
    static constexpr size_t kValues = 16;  // a choice has values 0 to 15
    static void visit(const Mode& mode, const auto& to) {
        const Choices choices = choices_of(mode);
        for (size_t i = 0; i < choices.size(); ++i) {
            for (size_t j = 0; j < i; ++j)
                to(((i * choices.size() + j) * kValues + static_cast<size_t>(choices[i])) * kValues +
                   static_cast<size_t>(choices[j]));
        }
    }

    std::vector<bool> bits_ = std::vector<bool>(kNumChoices * kNumChoices * kValues * kValues);
};

}  // namespace

Choices choices_of(const Mode& mode) {
    const Sharing sharing = sharing_of(mode);
    return {static_cast<int>(mode.strategy),
            mode.replicate,
            mode.shard,
            static_cast<int>(mode.accumulation),
            mode.optimizer == OptimizerKind::muon,
            static_cast<int>(mode.launch),
            static_cast<int>(mode.step_order),
            static_cast<int>(mode.optimizer_step),
            static_cast<int>(sharing.accumulate.value()),
            static_cast<int>(sharing.reshard_after_forward.value()),
            static_cast<int>(mode.every),
            static_cast<int>(std::find(kFamilies.begin(), kFamilies.end(), mode.family) - kFamilies.begin()),
            mode.clip > 0,
            mode.graphs};
}

std::vector<Mode> combined_modes(bool all) {
    const std::vector<Mode> product = whole_product();
    if (all) return product;
    Pairs missing;
    for (const Mode& mode : product) missing.add(mode);
    std::vector<Mode> modes;
    std::mt19937_64 random(1);
    constexpr int kCandidates = 100;
    // Greedy: the candidate with the most missing pairs, among random ones. The result is slightly larger than the minimum.
    for (int drawn_in_vain = 0; drawn_in_vain < kCandidates;) {
        const Mode* best = nullptr;
        int most = 0;
        for (int i = 0; i < kCandidates; ++i) {
            const Mode& mode = product[random() % product.size()];
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
