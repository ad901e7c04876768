#include <algorithm>
#include <cstdio>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/commands/eval.h"
#include "train/commands/multiple_choice.h"
#include "train/commands/row_losses.h"
#include "train/commands/run_tokenizer.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

struct ChoiceRows {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<int64_t> ending_tokens;  // number of last tokens, per row
};

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<uint16_t> tokens = tokenizer.encode(text);
    return {tokens.begin(), tokens.end()};
}

// Returns the last length + 1 tokens at most: the last token is only a target.
std::vector<int32_t> cut_left(std::vector<int32_t> row, int64_t length) {
    const auto most = static_cast<size_t>(length) + 1;
    if (row.size() > most) row.erase(row.begin(), row.end() - static_cast<std::ptrdiff_t>(most));
    return row;
}

std::vector<EndingScore> scores_of(RowLosses& model, const ChoiceRows& rows) {
    std::vector<EndingScore> scores;
    for (const std::vector<float>& losses : model.of(rows.tokens)) {
        EndingScore score{.sum = 0, .tokens = rows.ending_tokens[scores.size()]};
        for (auto loss = losses.end() - score.tokens; loss != losses.end(); ++loss) score.sum -= *loss;
        scores.push_back(score);
    }
    return scores;
}

}  // namespace

int run_multiple_choice(const EvalOptions& options) {
    const std::vector<ChoiceItem> items = read_choice_items(options.multiple_choice);
    const FinishedRun run = open_finished_run(options.run, options.settings, false);
    const auto tokenizer = tokenizer_of(run, options.vocabulary);
    RowLosses model(run);
    ChoiceRows rows;
    int64_t num_cut = 0;
    for (const ChoiceItem& item : items) {
        std::vector<int32_t> context = {tokenizer->separator()};
        for (const int32_t token : encoded(*tokenizer, item.context)) context.push_back(token);
        for (const std::string& text : item.endings) {
            const std::vector<int32_t> ending = encoded(*tokenizer, text);
            if (static_cast<int64_t>(ending.size()) > model.length())
                throw_data("{}: an ending of {} tokens is longer than a row ({}): \"{}...\"",
                           options.multiple_choice, ending.size(), model.length(), text.substr(0, 40));
            std::vector<int32_t> row = context;
            row.insert(row.end(), ending.begin(), ending.end());
            rows.tokens.push_back(cut_left(std::move(row), model.length()));
            rows.ending_tokens.push_back(static_cast<int64_t>(ending.size()));
            num_cut += rows.tokens.back().size() < context.size() + ending.size() ? 1 : 0;
        }
    }
    if (num_cut > 0)
        std::fprintf(
            stderr,
            "warning: %lld of %zu texts are longer than a row of %lld tokens and are cut from the left\n",
            static_cast<long long>(num_cut), rows.tokens.size(), static_cast<long long>(model.length()));
    const std::vector<EndingScore> scores = scores_of(model, rows);
    ChoiceResult result;
    Json all = Json::array();
    auto next = scores.begin();
    for (const ChoiceItem& item : items) {
        const auto end = next + static_cast<std::ptrdiff_t>(item.endings.size());
        const std::vector<EndingScore> own(next, end);
        next = end;
        result.add(own, item.label);
        Json of_item = Json::array();
        for (const EndingScore& score : own)
            of_item.push_back({{"sum", score.sum}, {"tokens", score.tokens}});
        all.push_back(of_item);
    }
    if (options.json) {
        const Json json = {{"accuracy", result.accuracy()},
                           {"accuracy_unnormalised", result.accuracy_by_sum()},
                           {"items", result.items},
                           {"texts_cut", num_cut},
                           {"scores", all}};
        std::printf("%s\n", json.dump().c_str());
        return 0;
    }
    std::printf("accuracy %.4f (%lld of %lld items), without normalisation %.4f\n", result.accuracy(),
                static_cast<long long>(result.right), static_cast<long long>(result.items),
                result.accuracy_by_sum());
    return 0;
}

}  // namespace speedrun
