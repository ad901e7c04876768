#include "train/model/token_tables.h"

#include <utility>

#include "train/model/nodes/embedding.h"

namespace speedrun {

TokenTables::TokenTables(GraphWriter& writer, const ModelParts& parts, std::set<std::string> value_tables)
    : w_(writer), parts_(parts), value_tables_(std::move(value_tables)) {
    for (const auto& [name, table] : parts_.tables)
        tables_[name] = w_.parameter(name + ".weight", {tables_rows(name), columns_of(name)},
                                     {w_.rule(table.init, w_.width().size), meaning_of(name, table.rows)});
}

std::string TokenTables::meaning_of(const std::string& table, TableRows rows) const {
    const bool head = parts_.head.tied_to == table;
    std::string text = rows == TableRows::tokens      ? "row t is token t's"
                       : rows == TableRows::positions ? "row i is that of the i-th token of a row"
                                                      : "rows are those of hashed n-grams";
    text += value_tables_.count(table) > 0 ? ", mixed into values of attention" : ", added to the stream";
    if (rows == TableRows::tokens) text += "; rows behind the vocabulary are padding";
    return text + (head ? "; logits = W x" : "");
}

Extent TokenTables::columns_of(const std::string& table) const {
    return value_tables_.count(table) > 0 ? w_.head_width() : w_.width();
}

// Values belong to heads, and a table of them is shared as these are.
Extent TokenTables::tables_rows(const std::string& table) const {
    const TableConfig& config = *parts_.find_table(table);
    if (config.rows == TableRows::positions) return {Dimension::positions, w_.batch.num_positions()};
    const int64_t count = config.rows == TableRows::ngrams ? config.num_rows : w_.padded_vocab_size();
    if (value_tables_.count(table) > 0) return {Dimension::rows, count};
    return w_.cut({Dimension::vocabulary, count});
}

ValueId TokenTables::own_ids(std::optional<OwnRows>& known, const std::string& name, const Extent& rows) {
    if (!known) known = {.own = w_.ids(name), .first = w_.batch.tensor.index * rows.size, .count = rows.size};
    return known->own;
}

ValueId TokenTables::lookup(const std::string& name, const std::string& table, const std::string& positions) {
    const ValueId rows = w_.real(name, w_.tokens(), columns_of(table));
    const bool by_position = rows_of(table) == TableRows::positions;
    ModelGraph& model = w_.model;
    const Extent own = tables_rows(table);
    const bool shared = own.parts > 1;
    const ValueId by_token = shared ? own_ids(model.own_tokens, "batch.own tokens", own) : model.tokens;
    w_.add<Embedding>(
        {.out = rows,
         .tokens = by_position ? model.positions : by_token,
         .table = tables_.at(table),
         .table_rows = own.size,
         .positions = positions.empty() ? kNoValue : model.positions,
         .position_table = positions.empty() ? kNoParameter : tables_.at(positions),
         .position_rows = w_.batch.num_positions()},
        SharedTable{.shares_rows = shared, .adds_positions = !shared || w_.batch.tensor.index == 0});
    return rows;
}

ValueId TokenTables::add_ngrams(ValueId x, const std::string& table) {
    const ValueId with = w_.view(x, "embedding with n-grams", 0, w_.width().size);
    const Extent own = tables_rows(table);
    std::vector<ValueId> rows = w_.model.ngrams;
    const bool shared = own.parts > 1;
    for (size_t i = 0; shared && i < rows.size(); ++i) {
        if (w_.model.own_ngrams.size() <= i) w_.model.own_ngrams.emplace_back();
        rows[i] = own_ids(w_.model.own_ngrams[i], fmt::format("batch.own {}-grams", i + 2), own);
    }
    w_.add<NgramEmbedding>(
        {.out = with, .x = x, .rows = rows, .table = tables_.at(table), .table_rows = own.size},
        NgramEmbedding::Options{
            .num_tokens = w_.tokens().size, .width = w_.width().size, .shares_rows = shared});
    return with;
}

}  // namespace speedrun
