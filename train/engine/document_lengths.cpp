#include "train/engine/document_lengths.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "data/normal_quantile.h"
#include "data/shard_patterns.h"
#include "kernels/device/error.h"
#include "train/engine/batch_sources.h"

namespace speedrun {

namespace {

constexpr int64_t kTypicalDocuments = 2048, kReadTokens = 1 << 22;
constexpr int64_t kPackedTokens = 1 << 18, kMinRows = 16;  // minimum of both

bool has_shards(const std::vector<std::string>& patterns) {
    try {
        return !expand_globs(patterns).empty();
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

DocumentLengths typical_documents() {
    constexpr double kMedian = 403, kMean = 690, kMin = 32;
    const double sigma = std::sqrt(2 * std::log(kMean / kMedian));
    DocumentLengths documents{.tokens = {},
                              .source = "typical of FineWeb, log-normal, median 403, mean 690 tokens"};
    for (int64_t i = 0; i < kTypicalDocuments; ++i) {
        const double p = (static_cast<double>(i) + 0.5) / static_cast<double>(kTypicalDocuments);
        const double length = kMedian * std::exp(sigma * normal_quantile(p));
        documents.tokens.push_back(std::llround(std::max(kMin, length)));
    }
    std::mt19937_64 generator(1);  // std::shuffle differs between libraries
    for (size_t i = documents.tokens.size(); i > 1; --i)
        std::swap(documents.tokens[i - 1], documents.tokens[generator() % i]);
    return documents;
}

DocumentLengths document_lengths(const Config& config) {
    if (!has_shards(config.data.train)) return typical_documents();
    const TokenDataset dataset = open_dataset(config, config.data.train, "data.train");
    std::vector<uint16_t> tokens(static_cast<size_t>(std::min(dataset.num_tokens(), kReadTokens)));
    dataset.read(0, tokens);
    DocumentLengths documents{.tokens = {}, .source = "those of data.train"};
    size_t begin = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] != dataset.separator() || i == begin) continue;
        documents.tokens.push_back(static_cast<int64_t>(i - begin));
        begin = i;
    }
    if (tokens.size() > begin) documents.tokens.push_back(static_cast<int64_t>(tokens.size() - begin));
    return documents;
}

std::string documents_note(const Config& config) {
    if (!config.data.document_mask) return "attention has no documents (data.document_mask)";
    return "attention is counted with documents: " + document_lengths(config).source;
}

std::vector<int32_t> packed_first_keys(const Config& stage, const DocumentLengths& documents) {
    if (!stage.data.document_mask) return {};
    const int64_t length = stage.batch.sequence_length, most = document_tokens(stage);
    const int64_t rows = std::max(kMinRows, (kPackedTokens + length - 1) / length);
    std::vector<int32_t> first_keys;
    first_keys.reserve(static_cast<size_t>(rows * length));
    size_t next = 0;
    int64_t left = 0;  // tokens of the current document
    for (int64_t row = 0; row < rows; ++row) {
        if (most > 0) left = 0;  // rows of documents begin with one
        for (int64_t at = 0; at < length;) {
            if (left == 0) {
                left = documents.tokens[next++ % documents.tokens.size()];
                if (most > 0) left = std::min(left, most);
            }
            const int64_t taken = std::min(left, length - at);
            first_keys.insert(first_keys.end(), static_cast<size_t>(taken), static_cast<int32_t>(at));
            at += taken;
            left -= taken;
        }
    }
    return first_keys;
}

}  // namespace speedrun
