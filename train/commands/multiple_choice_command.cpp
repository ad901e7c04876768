#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/commands/finished_run.h"
#include "train/commands/multiple_choice.h"
#include "train/commands/run_tokenizer.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

struct ChoiceRow {
    std::vector<int32_t> tokens;
    int64_t ending_tokens = 0;
};

// Scores the endings of rows, in microbatches of the validation model.
class ChoiceScorer {
  public:
    explicit ChoiceScorer(const FinishedRun& run)
        : run_(run),
          model_(run.runner->state().validation_model()),
          loss_sum_(run.runtime->device(), "loss", MemoryCategory::workspace, size_of(DType::f32)) {}

    int64_t length() const { return model_.shape().batch.sequence_length; }

    std::vector<EndingScore> scores(const std::vector<ChoiceRow>& rows) {
        std::vector<EndingScore> result;
        const auto at_once = static_cast<size_t>(model_.tokens() / length());
        for (size_t first = 0; first < rows.size(); first += at_once) {
            const size_t count = std::min(at_once, rows.size() - first);
            const std::vector<float> losses = losses_of({rows.data() + first, count});
            for (size_t r = 0; r < count; ++r)
                result.push_back(score_of(losses, static_cast<int64_t>(r), rows[first + r]));
        }
        return result;
    }

  private:
    std::vector<float> losses_of(std::span<const ChoiceRow> rows) {
        Batch batch;
        batch.tokens.assign(static_cast<size_t>(model_.tokens()), 0);
        batch.targets.assign(batch.tokens.size(), -1);
        for (size_t r = 0; r < rows.size(); ++r) {
            const std::vector<int32_t>& tokens = rows[r].tokens;
            const auto begin = static_cast<std::ptrdiff_t>(r) * length();
            std::copy(tokens.begin(), tokens.end() - 1, batch.tokens.begin() + begin);
            std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + begin);
        }
        // Each row is one document, so no separator masks keys.
        forward_batch(run_, batch, BatchLayout::kNoSeparator);
        Stream& stream = run_.runtime->compute();
        model_.loss(loss_sum_.tensor(DType::f32, {1}), false);
        const Tensor losses = model_.losses();
        std::vector<float> values(static_cast<size_t>(losses.numel()));
        run_.runtime->device().copy(values.data(), losses.data, losses.bytes(), stream);
        stream.synchronize();
        return values;
    }

    EndingScore score_of(const std::vector<float>& losses, int64_t row, const ChoiceRow& of) const {
        EndingScore score{.sum = 0, .tokens = of.ending_tokens};
        const int64_t end = row * length() + static_cast<int64_t>(of.tokens.size()) - 1;
        for (int64_t t = end - of.ending_tokens; t < end; ++t) score.sum -= losses[static_cast<size_t>(t)];
        if (!std::isfinite(score.sum))
            throw Error(ExitCode::diverged, "the model's losses are not finite: the run has diverged");
        return score;
    }

    const FinishedRun& run_;
    Transformer& model_;
    Buffer loss_sum_;
};

std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<uint16_t> tokens = tokenizer.encode(text);
    return {tokens.begin(), tokens.end()};
}

// Returns context and ending, or their last length + 1 tokens: the last token is only a target.
ChoiceRow row_of(const std::vector<int32_t>& context, const std::vector<int32_t>& ending, int64_t length) {
    ChoiceRow row{.tokens = context, .ending_tokens = static_cast<int64_t>(ending.size())};
    row.tokens.insert(row.tokens.end(), ending.begin(), ending.end());
    const auto most = static_cast<size_t>(length) + 1;
    if (row.tokens.size() > most)
        row.tokens.erase(row.tokens.begin(), row.tokens.end() - static_cast<std::ptrdiff_t>(most));
    return row;
}

}  // namespace

void add_multiple_choice(CLI::App& eval, MultipleChoiceOptions& options) {
    eval.add_option(
            "--multiple-choice", options.file,
            "print how often the right ending is the likeliest, instead of the loss; a line of the file: "
            "{\"context\": TEXT, \"endings\": [TEXT, ...], \"label\": INDEX}")
        ->type_name("FILE.jsonl");
    eval.add_option(
        "--vocab", options.vocabulary,
        "tiktoken file or tokenizer.json for --multiple-choice, if the run's data has no vocabulary");
    eval.add_flag("--json", options.json,
                  "print the --multiple-choice result and all scores as one JSON object");
    eval.footer(
        "--multiple-choice: the score of an ending is the mean over its tokens of log p(token | all tokens before it),\n"
        "in nats and the config's precision. A text is a separator, the context and an ending. The accuracy is the\n"
        "share of items in which ending `label` has the highest score; the first of equal scores counts. The accuracy\n"
        "without normalisation compares sums instead of means. Context and ending are tokenised separately, so\n"
        "a space between them must be part of one. A text longer than a row is cut from the left. HellaSwag:\n"
        "scripts/hellaswag_to_jsonl.py.\n"
        "Exit codes: 0 done; 2 bad usage; 3 a bad line (its number is printed), or an ending longer than a row;\n"
        "4 the run has diverged.");
}

bool MultipleChoiceOptions::is_requested() const {
    if (file.empty() && (json || !vocabulary.empty()))
        throw_usage("{}: only with --multiple-choice FILE.jsonl", json ? "--json" : "--vocab");
    return !file.empty();
}

int run_multiple_choice(const EvalOptions& eval, const MultipleChoiceOptions& options) {
    const std::vector<ChoiceItem> items = read_choice_items(options.file);
    const FinishedRun run = open_finished_run(eval.run, eval.settings, false);
    const auto tokenizer = tokenizer_of(run.config, options.vocabulary);
    ChoiceScorer scorer(run);
    std::vector<ChoiceRow> rows;
    int64_t num_cut = 0;
    for (const ChoiceItem& item : items) {
        std::vector<int32_t> context = {tokenizer->separator()};
        for (const int32_t token : tokens_of(*tokenizer, item.context)) context.push_back(token);
        for (const std::string& text : item.endings) {
            const std::vector<int32_t> ending = tokens_of(*tokenizer, text);
            if (static_cast<int64_t>(ending.size()) > scorer.length())
                throw_data("{}: an ending of {} tokens is longer than a row ({}): \"{}...\"", options.file,
                           ending.size(), scorer.length(), text.substr(0, 40));
            rows.push_back(row_of(context, ending, scorer.length()));
            num_cut += rows.back().tokens.size() < context.size() + ending.size() ? 1 : 0;
        }
    }
    if (num_cut > 0)
        std::fprintf(
            stderr,
            "warning: %lld of %zu texts are longer than a row of %lld tokens and are cut from the left\n",
            static_cast<long long>(num_cut), rows.size(), static_cast<long long>(scorer.length()));
    const std::vector<EndingScore> scores = scorer.scores(rows);
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
