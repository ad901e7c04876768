#include "data/dataset_writer.h"

#include <algorithm>

namespace speedrun {

namespace {

// Returns the index after the first line end that is at `from` or later; npos if there is none. A \r at the end of the part may
// belong to "\r\n" and is none.
size_t after_line_end(std::string_view part, size_t from) {
    for (size_t at = part.find_first_of("\n\r", from); at != part.npos;
         at = part.find_first_of("\n\r", at + 1)) {
        if (part[at] == '\n' || (at + 1 < part.size() && part[at + 1] != '\n')) return at + 1;
    }
    return part.npos;
}

SplitSummary finish_split(ShardWriter& writer, int64_t documents, DatasetInfo& info) {
    SplitSummary summary{documents, 0};
    for (ShardInfo& shard : writer.finish()) {
        summary.tokens += shard.tokens;
        info.shards.push_back(std::move(shard));
    }
    return summary;
}

}  // namespace

DatasetWriter::DatasetWriter(const std::string& folder, const Tokenizer& tokenizer, const SplitRule& rule,
                             int64_t shard_tokens)
    : rule_(rule),
      separator_(static_cast<uint16_t>(tokenizer.separator())),
      encoder_(tokenizer.encoder()),
      train_{ShardWriter({folder, "train"}, shard_tokens)},
      val_{ShardWriter({folder, "val"}, shard_tokens)} {}

void DatasetWriter::text(std::string_view part, bool is_cuttable) {
    const auto size = static_cast<int64_t>(part.size());
    const bool is_train = in_document_ ? !to_val_ : bytes_ < rule_.from_byte;
    if (is_cuttable && is_train && rule_.from_byte >= 0 && bytes_ + size >= rule_.from_byte) {
        const auto from = static_cast<size_t>(std::max<int64_t>(rule_.from_byte - bytes_ - 1, 0));
        const size_t cut = after_line_end(part, from);
        if (cut != part.npos) {
            append(part.substr(0, cut));
            end_document();
            part.remove_prefix(cut);
        }
    }
    append(part);
}

void DatasetWriter::append(std::string_view part) {
    if (part.empty()) return;
    if (!in_document_) {
        in_document_ = true;
        ++documents_;
        to_val_ = (rule_.every > 0 && documents_ % rule_.every == 0) ||
                  (rule_.from_byte >= 0 && bytes_ >= rule_.from_byte);
        ++current().documents;
    }
    bytes_ += static_cast<int64_t>(part.size());
    encoder_->add(part, tokens_);
    flush();
}

void DatasetWriter::end_document() {
    if (!in_document_) return;
    encoder_->finish(tokens_);
    tokens_.push_back(separator_);
    flush();
    in_document_ = false;
}

void DatasetWriter::flush() {
    current().shards.append(tokens_);
    tokens_.clear();
}

DatasetWriter::Splits DatasetWriter::finish(DatasetInfo& info) {
    return {.train = finish_split(train_.shards, train_.documents, info),
            .val = finish_split(val_.shards, val_.documents, info)};
}

}  // namespace speedrun
