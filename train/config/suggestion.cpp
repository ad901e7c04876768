#include "train/config/suggestion.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace speedrun {

namespace {

// Levenshtein distance.
size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
        }
    }
    return row[b.size()];
}

}  // namespace

std::string suggestion(const std::string& wrong, const std::set<std::string>& known) {
    if (known.empty()) return "";
    std::string best;
    size_t best_distance = std::max<size_t>(3, wrong.size() / 2 + 1);
    for (const std::string& name : known) {
        if (const size_t distance = edit_distance(wrong, name); distance < best_distance) {
            best_distance = distance;
            best = name;
        }
    }
    if (!best.empty()) return ", did you mean " + best + "?";
    std::string all;
    for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
    return "; known here: " + all;
}

}  // namespace speedrun
