// `speedrun eval --text`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <utility>

#include "data/json_text.h"
#include "data/text/document_source.h"
#include "kernels/device/error.h"
#include "train/commands/eval.h"
#include "train/commands/row_losses.h"
#include "train/commands/run_tokenizer.h"

namespace speedrun {

namespace {

// Returns the documents of the text as `prepare` reads them, without empty ones.
std::vector<std::string> read_text_documents(const EvalOptions& options) {
    std::vector<std::string> documents;
    std::string document;
    TextFindings findings;
    const auto end = [&] {
        if (!document.empty()) documents.push_back(std::exchange(document, ""));
    };
    read_documents(options.text, {.json_key = options.json_key},
                   {.text = [&](std::string_view part, bool) { document += part; }, .end = end}, findings);
    if (documents.empty()) throw_data("{}: empty", options.text);
    for (const TextFindings::InvalidUtf8& found : findings.invalid)
        fmt::print(stderr, "warning: {}\n", found.describe());
    return documents;
}

// Appends consecutive rows of separator and document. The last token of a row is the first one of the next, so each token of
// the document is predicted once.
void add_rows(const Tokenizer& tokenizer, const std::string& document, int64_t length,
              std::vector<std::vector<int32_t>>& rows) {
    std::vector<int32_t> tokens = {tokenizer.separator()};
    for (const uint16_t token : tokenizer.encode(document)) tokens.push_back(token);
    const auto step = static_cast<size_t>(length);
    for (size_t first = 0; first + 1 < tokens.size(); first += step) {
        const size_t end = std::min(first + step + 1, tokens.size());
        rows.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(first),
                          tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
}

}  // namespace

double TextLoss::perplexity() const {
    return std::exp(mean());
}

double TextLoss::bits_per_byte() const {
    return sum / std::numbers::ln2 / static_cast<double>(bytes);
}

int run_text_loss(const EvalOptions& options) {
    const std::vector<std::string> documents = read_text_documents(options);
    const FinishedRun run = open_finished_run(options.run, options.settings, false);
    const auto tokenizer = tokenizer_of(run, options.vocabulary);
    RowLosses model(run);
    TextLoss loss;
    std::vector<std::vector<int32_t>> rows;
    for (const std::string& document : documents) {
        loss.bytes += static_cast<int64_t>(document.size());
        add_rows(*tokenizer, document, model.length(), rows);
    }
    for (const std::vector<float>& row : model.of(rows)) {
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
