#include "train/model/token_tables.h"

#include <utility>

#include "train/model/sign_bits.h"

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
    if (parts_.find_table(table)->sign_rows > 0) text += ", times fixed signs";
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

ValueId TokenTables::ids_of(const std::string& table, size_t size) {
    ModelGraph& model = w_.model;
    if (rows_of(table) == TableRows::positions) return model.positions;
    const bool grams = rows_of(table) == TableRows::ngrams;
    const Extent own = tables_rows(table);
    if (own.parts == 1) return grams ? model.ngrams[size] : model.tokens;
    if (!grams) return own_ids(model.own_tokens, "batch.own tokens", own);
    if (model.own_ngrams.size() <= size) model.own_ngrams.resize(size + 1);
    return own_ids(model.own_ngrams[size], fmt::format("batch.own {}-grams", size + 2), own);
}

SignPorts TokenTables::signs_of(const std::string& table) {
    const int64_t rows = parts_.find_table(table)->sign_rows, columns = w_.width().size;
    if (rows == 0) return {};
    if (signs_.bits == kNoValue)
        signs_ = {.bits = w_.model.graph.constant(
                      "signs", {{Dimension::numbers, rows}, {Dimension::numbers, (columns + 31) / 32}},
                      sign_bits({.rows = rows, .columns = columns})),
                  .row = w_.model.sign_rows};
    return signs_;
}

ValueId TokenTables::lookup(const std::string& name, const std::string& table, const std::string& positions) {
    const ValueId rows = w_.real(name, w_.tokens(), columns_of(table));
    const Extent own = tables_rows(table);
    const bool shared = own.parts > 1;
    w_.add<Embedding>(
        {.out = rows,
         .tokens = ids_of(table),
         .table = tables_.at(table),
         .table_rows = own.size,
         .positions = positions.empty() ? kNoValue : w_.model.positions,
         .position_table = positions.empty() ? kNoParameter : tables_.at(positions),
         .position_rows = w_.batch.num_positions(),
         .signs = signs_of(table)},
        SharedTable{.shares_rows = shared, .adds_positions = !shared || w_.batch.tensor.index == 0});
    return rows;
}

ValueId TokenTables::in_stream(const std::string& table) {
    const auto [at, is_new] = in_stream_.try_emplace(table);
    if (is_new) {
        const ValueId rows = lookup(table, table);
        at->second = shares_rows(table) ? w_.into_stream(rows) : w_.shared_out(rows);
    }
    return at->second;
}

ValueId TokenTables::add_ngrams(ValueId x, const std::string& table) {
    const ValueId with = w_.view(x, "embedding with n-grams", 0, w_.width().size);
    const Extent own = tables_rows(table);
    std::vector<ValueId> rows;
    for (size_t size = 0; size < w_.model.ngrams.size(); ++size) rows.push_back(ids_of(table, size));
    w_.add<NgramEmbedding>(
        {.out = with,
         .x = x,
         .rows = rows,
         .table = tables_.at(table),
         .table_rows = own.size,
         .signs = signs_of(table)},
        NgramEmbedding::Options{
            .num_tokens = w_.tokens().size, .width = w_.width().size, .shares_rows = own.parts > 1});
    return with;
}

}  // namespace speedrun
