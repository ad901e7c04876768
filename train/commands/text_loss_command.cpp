// `speedrun eval --text`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/commands/eval.h"
#include "train/commands/row_losses.h"
#include "train/commands/run_tokenizer.h"

namespace speedrun {

namespace {

// Returns consecutive rows of separator and text. The last token of a row is the first one of the next, so each token of the
// text is predicted once.
std::vector<std::vector<int32_t>> rows_of_text(const Tokenizer& tokenizer, const std::string& text,
                                               int64_t length) {
    std::vector<int32_t> tokens = {tokenizer.separator()};
    for (const uint16_t token : tokenizer.encode(text)) tokens.push_back(token);
    std::vector<std::vector<int32_t>> rows;
    const auto step = static_cast<size_t>(length);
    for (size_t first = 0; first + 1 < tokens.size(); first += step) {
        const size_t end = std::min(first + step + 1, tokens.size());
        rows.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(first),
                          tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
    return rows;
}

}  // namespace

double TextLoss::perplexity() const {
    return std::exp(mean());
}

double TextLoss::bits_per_byte() const {
    return sum / std::numbers::ln2 / static_cast<double>(bytes);
}

int run_text_loss(const EvalOptions& options) {
    const std::string text = read_text_file(options.text);
    if (text.empty()) throw_data("{}: empty", options.text);
    const FinishedRun run = open_finished_run(options.run, options.settings, false);
    const auto tokenizer = tokenizer_of(run, options.vocabulary);
    RowLosses model(run);
    TextLoss loss{.sum = 0, .tokens = 0, .bytes = static_cast<int64_t>(text.size())};
    for (const std::vector<float>& row : model.of(rows_of_text(*tokenizer, text, model.length()))) {
        for (const float token : row) loss.sum += token;
        loss.tokens += static_cast<int64_t>(row.size());
    }
    if (options.json) {
        const nlohmann::ordered_json json = {{"loss", loss.mean()},
                                             {"perplexity", loss.perplexity()},
                                             {"bits_per_byte", loss.bits_per_byte()},
                                             {"tokens", loss.tokens},
                                             {"bytes", loss.bytes}};
        std::printf("%s\n", json.dump().c_str());
        return 0;
    }
    std::printf("loss %.6f nats/token, perplexity %.4f, %.6f bits/byte over %lld tokens, %lld bytes of %s\n",
                loss.mean(), loss.perplexity(), loss.bits_per_byte(), static_cast<long long>(loss.tokens),
                static_cast<long long>(loss.bytes), options.text.c_str());
    return 0;
}

}  // namespace speedrun
