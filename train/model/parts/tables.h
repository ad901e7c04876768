// Embedding tables: one row per token, position or n-gram.
#pragma once

#include <cstdint>
#include <string>

#include "data/columns/ngrams.h"
#include "train/config/init_config.h"

namespace speedrun {

struct ModelParts;

// Index of the rows of a table.
enum class TableRows : uint8_t { tokens, positions, ngrams };
template <>
inline constexpr Word<TableRows> kWords<TableRows>[] = {
    {"tokens", TableRows::tokens}, {"positions", TableRows::positions}, {"ngrams", TableRows::ngrams}};

// Reduction of a table's gradient over ranks: all rows, or the rows looked up in the step.
enum class TableExchange : uint8_t { whole, rows };
template <>
inline constexpr Word<TableExchange> kWords<TableExchange>[] = {{"whole", TableExchange::whole},
                                                                {"rows", TableExchange::rows}};

template <>
inline constexpr Word<NgramHash> kWords<NgramHash>[] = {{"mixed", NgramHash::mixed},
                                                        {"products", NgramHash::products}};

// The parameter of a table is NAME.weight.
struct TableConfig {
    TableRows rows = TableRows::tokens;
    InitConfig init = {};
    NgramTable ngrams{.max_ngram = 2, .num_rows = 8192};  // for rows = ngrams
    TableExchange exchange = TableExchange::whole;

    void fields(FieldVisitor& v);
    // Throws a usage error for options that do not fit the rows.
    void check(const std::string& key) const;
};

// Throws a usage error, with key and values, for tables that cannot be built or that nothing reads, and for unknown names.
void check_tables(const ModelParts& parts);

}  // namespace speedrun
