#include "train/model/token_tables.h"

#include <utility>

#include "train/model/nodes/embedding.h"

namespace speedrun {

TokenTables::TokenTables(GraphWriter& writer, const ModelParts& parts, std::set<std::string> value_tables)
    : w_(writer), parts_(parts), value_tables_(std::move(value_tables)) {
    for (const auto& [name, table] : parts_.tables) {
        Extent rows = w_.vocabulary();
        if (table.rows == TableRows::positions) rows = {Dimension::positions, w_.batch.num_positions()};
        if (table.rows == TableRows::ngrams) rows = {Dimension::vocabulary, table.num_rows};
        tables_[name] =
            w_.parameter(name + ".weight", {rows, columns_of(name)}, w_.rule(table.init, w_.width().size));
    }
}

Extent TokenTables::columns_of(const std::string& table) const {
    return value_tables_.count(table) > 0 ? w_.head_width() : w_.width();
}

ValueId TokenTables::lookup(const std::string& name, const std::string& table, const std::string& positions) {
    const ValueId rows = w_.real(name, columns_of(table));
    const bool by_position = rows_of(table) == TableRows::positions;
    const ModelGraph& model = w_.model;
    w_.add<Embedding>({.out = rows,
                       .tokens = by_position ? model.positions : model.tokens,
                       .table = tables_.at(table),
                       .table_rows = by_position ? w_.batch.num_positions() : w_.vocabulary().size,
                       .positions = positions.empty() ? kNoValue : model.positions,
                       .position_table = positions.empty() ? kNoParameter : tables_.at(positions),
                       .position_rows = w_.batch.num_positions()});
    return rows;
}

ValueId TokenTables::add_ngrams(ValueId x, const std::string& table) {
    const ValueId with = w_.view(x, "embedding with n-grams", 0, w_.width().size);
    w_.add<NgramEmbedding>({.out = with,
                            .x = x,
                            .rows = w_.model.ngrams,
                            .table = tables_.at(table),
                            .table_rows = parts_.find_table(table)->num_rows},
                           w_.tokens().size, w_.width().size);
    return with;
}

}  // namespace speedrun
