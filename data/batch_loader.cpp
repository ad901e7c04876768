#include "data/batch_loader.h"

#include <algorithm>
#include <limits>

#include "data/document_rows.h"
#include "data/mixed_rows.h"
#include "data/stream_rows.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Resizes the batch for the tokens and targets of whole rows.
void start(Batch& batch, int64_t rows, int64_t sequence_length) {
    // Indices into the batch are int32.
    if (rows < 0 || rows > std::numeric_limits<int32_t>::max() / sequence_length) {
        throw_internal("batch of {} rows of {} tokens", rows, sequence_length);
    }
    const size_t total = static_cast<size_t>(rows * sequence_length);
    batch.tokens.resize(total);
    batch.targets.resize(total);
    batch.positions.clear();
    batch.first_key.clear();
    batch.step_targets = 0;
}

}  // namespace

BatchLoader::BatchLoader(const std::vector<WeightedDataset>& sources, const BatchLoaderOptions& options)
    : separator_(options.document_mask && !sources.empty() ? sources.front().dataset->separator()
                                                           : BatchLayout::kNoSeparator),
      options_(options) {
    if (options.stages.empty()) throw_internal("a loader without stages");
    if (sources.empty()) throw_internal("a loader without data");
    int64_t first_step = 0, first_row = 0;
    for (const LoaderStage& stage : options.stages) {
        if (stage.sequence_length < 1)
            throw_usage("sequence_length is {}, expected 1 or more", stage.sequence_length);
        if (stage.rows_per_step < 1)
            throw_usage("rows_per_step is {}, expected 1 or more", stage.rows_per_step);
        if (stage.of_documents() != options.stages.front().of_documents())
            throw_internal("stages of documents and of the stream");
        stages_.push_back({.stage = stage, .first_step = first_step, .first_row = first_row});
        first_step += stage.num_steps;
        first_row += stage.num_rows();
    }
    if (sources.size() > 1) {
        mix(sources);
        return;
    }
    std::vector<int64_t> num_rows;
    for (const Stage& s : stages_) num_rows.push_back(s.stage.num_rows());
    StageRows rows = rows_of(
        {.dataset = *sources.front().dataset, .seed = options_.seed, .num_rows = std::move(num_rows)});
    for (size_t i = 0; i < stages_.size(); ++i) stages_[i].rows = std::move(rows[i]);
}

void BatchLoader::mix(const std::vector<WeightedDataset>& sources) {
    std::vector<double> weights;
    for (const WeightedDataset& source : sources) weights.push_back(source.weight);
    order_ = std::make_shared<const MixtureOrder>(weights, options_.seed);
    std::vector<StageRows> by_stage(stages_.size());
    for (size_t k = 0; k < sources.size(); ++k) {
        constexpr uint64_t kNextSeed = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
        OneSource source{
            .dataset = *sources[k].dataset, .seed = options_.seed + k * kNextSeed, .num_rows = {}};
        const auto number = static_cast<int>(k);
        for (size_t i = 0; i < stages_.size(); ++i)
            source.num_rows.push_back(order_->rows_before(number, first_row_after(i)) -
                                      order_->rows_before(number, stages_[i].first_row));
        StageRows rows = rows_of(source);
        first_epochs_.push_back(rows.front()->counts(0));
        for (size_t i = 0; i < stages_.size(); ++i) by_stage[i].push_back(std::move(rows[i]));
    }
    for (size_t i = 0; i < stages_.size(); ++i)
        stages_[i].rows = std::make_unique<MixedRows>(order_, std::move(by_stage[i]), stages_[i].first_row);
}

BatchLoader::StageRows BatchLoader::rows_of(const OneSource& source) const {
    return stages_.front().stage.of_documents() ? documents_of(source) : windows_of(source);
}

// All stages share the windows of the longest rows.
BatchLoader::StageRows BatchLoader::windows_of(const OneSource& source) const {
    WindowRange range;
    for (const Stage& s : stages_)
        range.window_tokens = std::max(range.window_tokens, s.stage.sequence_length);
    StageRows rows;
    for (const Stage& s : stages_) {
        const int64_t pieces = range.window_tokens / s.stage.sequence_length;
        range.count = (source.num_rows[rows.size()] + pieces - 1) / pieces;
        if (&s == &stages_.back() && pieces == 1) range.count = 0;
        rows.push_back(std::make_unique<StreamRows>(
            source.dataset, StreamRowsOptions{.sequence_length = s.stage.sequence_length,
                                              .seed = source.seed,
                                              .shuffle = options_.shuffle,
                                              .range = range}));
        range.first += range.count;
    }
    return rows;
}

BatchLoader::StageRows BatchLoader::documents_of(const OneSource& source) const {
    const auto index = std::make_shared<const DocumentIndex>(source.dataset);
    DocumentPosition begin;
    StageRows all;
    for (const Stage& s : stages_) {
        auto rows = std::make_unique<DocumentRows>(
            source.dataset, index,
            DocumentRowsOptions{.sequence_length = s.stage.sequence_length,
                                .max_document_tokens = s.stage.max_document_tokens,
                                .seed = source.seed,
                                .shuffle = options_.shuffle,
                                .begin = begin});
        if (&s != &stages_.back()) begin = rows->begin_of(source.num_rows[all.size()]);
        all.push_back(std::move(rows));
    }
    return all;
}

std::vector<SourceUse> BatchLoader::uses(int64_t steps) const {
    std::vector<SourceUse> uses;
    for (int k = 0; order_ && k < order_->num_sources(); ++k) {
        SourceUse use{.files = "", .share = order_->share(k), .epoch = first_epochs_[static_cast<size_t>(k)]};
        for (size_t i = 0; i <= stage_at(steps); ++i) {
            const Stage& s = stages_[i];
            const int64_t end = i < stage_at(steps)
                                    ? first_row_after(i)
                                    : s.first_row + (steps - s.first_step) * s.stage.rows_per_step;
            const int64_t rows = order_->rows_before(k, end) - order_->rows_before(k, s.first_row);
            use.rows += rows;
            use.tokens += rows * s.stage.sequence_length;
        }
        const int64_t per_epoch = use.epoch.rows * stages_.front().stage.sequence_length;
        if (per_epoch > 0) use.epochs = static_cast<double>(use.tokens) / static_cast<double>(per_epoch);
        uses.push_back(std::move(use));
    }
    return uses;
}

size_t BatchLoader::stage_at(int64_t step) const {
    size_t index = 0;
    while (index + 1 < stages_.size() && step >= stages_[index + 1].first_step) ++index;
    return index;
}

int64_t BatchLoader::epoch(int64_t step) const {
    const Stage& s = stages_[stage_at(step)];
    return s.rows->epoch((step - s.first_step) * s.stage.rows_per_step);
}

std::string BatchLoader::describe() const {
    if (stages_.size() == 1) return stages_.front().rows->describe();
    std::string text;
    for (size_t i = 0; i < stages_.size(); ++i)
        text += fmt::format("{}stage {}: {}", i == 0 ? "" : "\n", i, stages_[i].rows->describe());
    return text;
}

void BatchLoader::fill(int64_t step, RowRange rows, Batch& batch) const {
    const Stage& s = stages_[stage_at(step)];
    const int64_t rows_per_step = s.stage.rows_per_step;
    if (step < 0 || rows.first < 0 || rows.count < 0 || rows.first > rows_per_step - rows.count) {
        throw_internal("rows {} to {} of step {}, a step has {}", rows.first, rows.first + rows.count, step,
                       rows_per_step);
    }
    const int64_t S = s.stage.sequence_length;
    start(batch, rows.count, S);
    std::vector<uint16_t> tokens(static_cast<size_t>(S) + 1);  // inputs 0 … S-1, targets 1 … S
    for (int64_t row = 0; row < rows.count; ++row) {
        s.rows->read((step - s.first_step) * rows_per_step + rows.first + row, tokens);
        std::copy(tokens.begin(), tokens.end() - 1, batch.tokens.begin() + row * S);
        std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + row * S);
    }
    complete(batch, s.stage.columns,
             {.sequence_length = S,
              .separator = separator_,
              .part = options_.part,
              .prefixes = options_.prefixes});
    batch.step_targets = rows_per_step * S;  // each row includes the target of its last input
}

ValidationLoader::ValidationLoader(const TokenDataset& dataset, const ValidationLoaderOptions& options)
    : dataset_(dataset), options_(options) {
    const int64_t S = options.sequence_length;
    if (S < 1) throw_usage("sequence_length is {}, expected 1 or more", S);
    if (options.val_tokens < 0) throw_usage("val_tokens is {}, expected 0 or more", options.val_tokens);
    const int64_t available = dataset.num_tokens() - 1;  // the first token is never a target
    if (available < 1) {
        throw_data("validation data is empty: {} has {} tokens, at least 2 are needed",
                   dataset.shard(0).path(), dataset.num_tokens());
    }
    if (options.val_tokens > available) {
        throw_data(
            "validation data is too short: val_tokens is {}, the shards ({} …) have {} targets; lower data.val_tokens to at "
            "most {}, or prepare the data with a larger --val-fraction",
            options.val_tokens, dataset.shard(0).path(), available, available);
    }
    num_targets_ = options.val_tokens == 0 ? available : options.val_tokens;
    num_rows_ = (num_targets_ + S - 1) / S;
}

void ValidationLoader::fill(RowRange rows, Batch& batch) const {
    if (rows.first < 0) throw_internal("validation row {}", rows.first);
    const int64_t S = options_.sequence_length;
    start(batch, rows.count, S);
    std::fill(batch.tokens.begin(), batch.tokens.end(), dataset_.separator());
    std::fill(batch.targets.begin(), batch.targets.end(), -1);
    std::vector<uint16_t> tokens;  // inputs and the last target
    for (int64_t row = 0; row < rows.count; ++row) {
        const int64_t begin = (rows.first + row) * S;
        const int64_t count = std::clamp<int64_t>(num_targets_ - begin, 0, S);
        if (count > 0) {
            tokens.resize(static_cast<size_t>(count) + 1);
            dataset_.read(begin, tokens);
            std::copy(tokens.begin(), tokens.end() - 1, batch.tokens.begin() + row * S);
            std::copy(tokens.begin() + 1, tokens.end(), batch.targets.begin() + row * S);
        }
    }
    const int32_t separator = options_.document_mask ? dataset_.separator() : BatchLayout::kNoSeparator;
    complete(batch, options_.columns, {.sequence_length = S, .separator = separator, .part = options_.part});
}

}  // namespace speedrun
