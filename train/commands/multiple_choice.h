// `speedrun eval --multiple-choice`: accuracy of choosing the likeliest of several endings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

// A line {"context": TEXT, "endings": [TEXT, ...], "label": INDEX}: `label` is the index of the right ending.
struct ChoiceItem {
    std::string context;
    std::vector<std::string> endings;  // at least two, each nonempty
    int64_t label = 0;
};

// Reads a file with one JSON object per line; empty lines are skipped, other keys ignored. Throws a data error that names file,
// line and reason, also for a file without items.
std::vector<ChoiceItem> read_choice_items(const std::string& path);

// An ending's log-probability given its context, in nats: Σ log p(token | all before it), over its tokens.
struct EndingScore {
    double sum = 0;
    int64_t tokens = 0;
    double normalised() const { return sum / static_cast<double>(tokens); }
};

struct ChoiceResult {
    int64_t items = 0, right = 0, right_by_sum = 0;
    // `right`: the label has the largest normalised(); right_by_sum: the largest sum. Ties count for the first ending.
    void add(const std::vector<EndingScore>& endings, int64_t label);
    double accuracy() const { return static_cast<double>(right) / static_cast<double>(items); }
    double accuracy_by_sum() const { return static_cast<double>(right_by_sum) / static_cast<double>(items); }
};

}  // namespace speedrun
