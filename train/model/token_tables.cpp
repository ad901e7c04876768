#include "train/model/token_tables.h"

#include <algorithm>
#include <utility>

#include "data/columns/own_tokens.h"
#include "train/model/sign_bits.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

TokenTables::TokenTables(GraphWriter& writer, const ModelParts& parts,
                         std::map<std::string, Extent> value_columns)
    : w_(writer), parts_(parts), value_columns_(std::move(value_columns)) {
    for (const auto& [name, table] : parts_.tables)
        tables_[name] =
            w_.parameter(name + ".weight", {rows_in(name), columns_of(name)},
                         {w_.rule(table.init, w_.extents.width().size), meaning_of(name, table.rows)});
}

std::string TokenTables::meaning_of(const std::string& table, TableRows rows) const {
    const bool head = parts_.head.tied_to == table;
    std::string text = rows == TableRows::tokens      ? "row t is token t's"
                       : rows == TableRows::positions ? "row i is that of the i-th token of a row"
                                                      : "rows are those of hashed n-grams";
    if (parts_.find_table(table)->sign_rows > 0) text += ", times fixed signs";
    text += value_columns_.count(table) > 0 ? ", mixed into values of attention" : ", added to the stream";
    if (rows == TableRows::tokens) text += "; rows after the vocabulary are padding";
    return text + (head ? "; logits = W x" : "");
}

// A table of values is split by heads, as the values are. A table of n-grams has many rows and is split by columns: each rank looks up
// its columns for every token.
Extent TokenTables::columns_of(const std::string& table) const {
    if (const auto at = value_columns_.find(table); at != value_columns_.end()) return at->second;
    if (rows_of(table) == TableRows::ngrams)
        return w_.extents.cut({Dimension::columns, w_.extents.width().size});
    return w_.extents.width();
}

Extent TokenTables::looked_up(const std::string& table) const {
    return value_columns_.count(table) > 0 ? columns_of(table) : w_.extents.width();
}

Extent TokenTables::rows_in(const std::string& table) const {
    const TableConfig& config = *parts_.find_table(table);
    switch (config.rows) {
        case TableRows::positions:
            return {Dimension::positions, w_.batch.num_positions()};
        case TableRows::ngrams:
            return {Dimension::rows, config.num_rows};
        case TableRows::tokens:
            break;
    }
    const bool by_columns = value_columns_.count(table) > 0;
    return by_columns ? Extent{Dimension::rows, w_.extents.padded_vocab_size()} : w_.extents.vocabulary();
}

Column TokenTables::ids_of(const std::string& table) const {
    if (rows_of(table) == TableRows::positions) return positions_column();
    if (rows_of(table) == TableRows::ngrams) return ngram_columns(parts_.ngram_table()).front();
    const Extent rows = rows_in(table);
    if (rows.parts == 1) return tokens_column();
    return own_tokens_column({.first = w_.batch.tensor.index * rows.size, .count = rows.size});
}

void TokenTables::note_ids(const std::string& table, const Column& ids) {
    if (parts_.find_table(table)->exchange != TableExchange::rows) return;
    std::vector<RowIds>& known = w_.model.row_ids;
    const RowIds pair{tables_.at(table), ids};
    if (std::find(known.begin(), known.end(), pair) != known.end()) return;
    known.push_back(pair);
    w_.model.table.add_row_ids(pair.table);
}

SharedTable TokenTables::sharing_of(const std::string& table) const {
    const Extent rows = rows_in(table), columns = columns_of(table);
    const int index = w_.batch.tensor.index;
    return {.shares_rows = rows.parts > 1,
            .adds_positions = rows.parts == 1 || index == 0,
            .first_column = columns.dimension == Dimension::columns ? index * columns.size : 0,
            .columns = columns.size};
}

SignPorts TokenTables::signs_of(const std::string& table) {
    const int64_t rows = parts_.find_table(table)->sign_rows;
    if (rows == 0) return {};
    if (signs_.bits == kNoValue) {
        const Extent own = columns_of(table);
        signs_ = {.bits = w_.model.graph.constant(
                      "signs", {{Dimension::numbers, rows}, {Dimension::numbers, (own.size + 31) / 32}},
                      sign_bits({.rows = rows,
                                 .columns = own.size,
                                 .first_column = own.parts > 1 ? w_.batch.tensor.index * own.size : 0})),
                  .row = w_.input(sign_rows_column(parts_.ngram_table()))};
    }
    return signs_;
}

ValueId TokenTables::lookup(const std::string& name, const std::string& table, const std::string& positions) {
    const ValueId rows = w_.real(name, w_.extents.tokens(), looked_up(table));
    const Column ids = ids_of(table);
    note_ids(table, ids);
    w_.add<Embedding>({.out = rows,
                       .tokens = w_.input(ids),
                       .table = tables_.at(table),
                       .table_rows = rows_in(table).size,
                       .positions = positions.empty() ? kNoValue : w_.input(positions_column()),
                       .position_table = positions.empty() ? kNoParameter : tables_.at(positions),
                       .position_rows = w_.batch.num_positions(),
                       .signs = signs_of(table)},
                      sharing_of(table));
    return rows;
}

ValueId TokenTables::in_stream(const std::string& table) {
    const auto [at, is_new] = in_stream_.try_emplace(table);
    if (is_new) {
        const ValueId rows = lookup(table, table);
        at->second = gives_terms(table) ? into_stream(w_, rows) : shared_out(w_, rows);
    }
    return at->second;
}

ValueId TokenTables::add_ngrams(ValueId x, const std::string& table) {
    const ValueId with = w_.view(x, "embedding with n-grams", 0, w_.extents.width().size);
    std::vector<ValueId> rows;
    for (const Column& ids : ngram_columns(parts_.ngram_table())) {
        note_ids(table, ids);
        rows.push_back(w_.input(ids));
    }
    w_.add<NgramEmbedding>(
        {.out = with,
         .x = x,
         .rows = rows,
         .table = tables_.at(table),
         .table_rows = rows_in(table).size,
         .signs = signs_of(table)},
        NgramEmbedding::Options{.num_tokens = w_.extents.tokens().size, .shared = sharing_of(table)});
    return with;
}

}  // namespace speedrun
