#include "train/records/batch_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "train/config/config_keys.h"

namespace speedrun {

namespace {

// Number of changes below which a correlation may be chance: with 64 changes, two seeds reach 0.4.
constexpr size_t kFewChanges = 40;
// Records of 2026: -0.34 to 0.40 for two seeds, 0.82 to 1.00 for one seed with equal batches.
constexpr double kMaxOfTwoSeeds = 0.75, kMinOfOneSeed = 0.4;

struct Changes {
    std::vector<double> a, b;
};

Changes common_changes(const std::vector<RunLine>& a, const std::vector<RunLine>& b) {
    std::map<int64_t, double> other;
    for (const RunLine& line : b) {
        if (line.is_step) other[line.step] = line.loss;
    }
    std::vector<std::pair<double, double>> losses;
    for (const RunLine& line : a) {
        const auto found = other.find(line.step);
        if (line.is_step && found != other.end()) losses.emplace_back(line.loss, found->second);
    }
    Changes changes;
    for (size_t i = losses.size() / 2 + 1; i < losses.size(); ++i) {
        changes.a.push_back(losses[i].first - losses[i - 1].first);
        changes.b.push_back(losses[i].second - losses[i - 1].second);
    }
    return changes;
}

double mean_change(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

}  // namespace

std::optional<double> loss_correlation(const std::vector<RunLine>& a, const std::vector<RunLine>& b) {
    const Changes changes = common_changes(a, b);
    if (changes.a.size() < kFewChanges) return std::nullopt;
    const double mean_a = mean_change(changes.a), mean_b = mean_change(changes.b);
    double product = 0, square_a = 0, square_b = 0;
    for (size_t i = 0; i < changes.a.size(); ++i) {
        const double x = changes.a[i] - mean_a, y = changes.b[i] - mean_b;
        product += x * y;
        square_a += x * x;
        square_b += y * y;
    }
    if (square_a == 0 || square_b == 0) return 0;
    return product / std::sqrt(square_a * square_b);
}

bool same_batches(const std::string& config, const std::string& other) {
    const std::vector<KeyDifference> differences = key_differences(config, other);
    return std::none_of(differences.begin(), differences.end(), [](const KeyDifference& d) {
        return d.key.starts_with("data.") || d.key.starts_with("schedule.stages") ||
               d.key.starts_with("batch.sequence_length") || d.key.starts_with("batch.tokens_per_step");
    });
}

bool draws_by_seed(const std::string& config) {
    const auto keys = flat_keys(config);
    const auto shuffle = keys.find("data.shuffle");
    return shuffle == keys.end() || shuffle->second != "false";
}

std::string batches_problem(const std::vector<RunLine>& a, const std::vector<RunLine>& b, bool one_seed) {
    const std::optional<double> correlation = loss_correlation(a, b);
    if (!correlation) return "";
    if (!one_seed && *correlation > kMaxOfTwoSeeds)
        return fmt::format("two seeds, but their losses vary together (correlation {:.2f}, {} at most)",
                           *correlation, kMaxOfTwoSeeds);
    if (one_seed && *correlation < kMinOfOneSeed)
        return fmt::format(
            "one seed and the same batches, but their losses do not vary together (correlation {:.2f}, {} "
            "at least)",
            *correlation, kMinOfOneSeed);
    return "";
}

}  // namespace speedrun
