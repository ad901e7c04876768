#include "train/model/parts/tables.h"

#include <algorithm>
#include <set>
#include <utility>

#include "data/columns/own_tokens.h"
#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/config/suggestion.h"
#include "train/model/layers.h"
#include "train/model/sign_bits.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

namespace {

class TableCheck {
  public:
    explicit TableCheck(const ModelParts& parts) : parts_(parts) {
        for (const auto& [name, table] : parts.tables) names_.insert(name);
    }

    void run() {
        check_options();
        check_input();
        check_sums_and_values();
        check_head();
        for (const std::string& name : names_)
            if (!used_.count(name))
                throw_usage("model.tables.{}: nothing reads it (model.input, attention.value_table, sums)",
                            name);
    }

  private:
    void check_options() const {
        constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
        int64_t ngrams = 0;
        for (const auto& [name, table] : parts_.tables) {
            if (name.empty() || name.size() > 60 || name.find_first_not_of(kLetters) != std::string::npos)
                throw_usage("model.tables: \"{}\" is no name: letters, digits, _ and . are",
                            shown_key<nlohmann::json>(name));
            for (const char* taken : {"blocks", "head", "smear", "input", "output", "final_norm", "networks"})
                if (name == taken || name.rfind(std::string(taken) + ".", 0) == 0)
                    throw_usage("model.tables.{}: parameters of that name belong to the model", name);
            table.check("model.tables." + name);
            ngrams += table.rows == TableRows::ngrams ? 1 : 0;
        }
        if (ngrams > 1) throw_usage("model.tables: {} tables of ngrams, at most one is read", ngrams);
    }

    void check_input() {
        int64_t positions = 0;
        for (size_t i = 0; i < parts_.input.size(); ++i) {
            if (parts_.input[i].type != StreamPart::table) continue;
            const std::string key = fmt::format("model.input[{}].table", i), &name = parts_.input[i].table;
            const TableRows rows = use(key, name).rows;
            if (!in_input_.insert(name).second) throw_usage("{}: \"{}\" is added twice", key, name);
            if (i == 0 && rows != TableRows::tokens)
                throw_usage("{}: \"{}\" has rows for {}: begin with a table of tokens", key, name,
                            word_of(rows));
            positions += rows == TableRows::positions ? 1 : 0;
        }
        if (positions > 1) throw_usage("model.input: {} tables of positions, at most one is read", positions);
    }

    void check_sums_and_values() {
        const auto layers = parts_.layers.resolved();
        for (const Sum& sum : sums_of(parts_))
            for (size_t i = 0; i < sum.terms.size(); ++i)
                check_term(fmt::format("{}[{}].table", sum.key, i), sum.slot, sum.terms[i].table);
        for (size_t i = 0; i < layers.size(); ++i)
            if (layers[i] && layers[i]->attention)
                check_values(fmt::format("model.layers, layer {}: attention.value_table", i),
                             layers[i]->attention->value_table);
    }

    // Tables of sums of the stream have one row per token and no other reader. Tables of output sums may also be value tables.
    void check_term(const std::string& key, SumSlot slot, const std::string& name) {
        if (name.empty()) return;
        if (slot == SumSlot::output) return expect_tokens(key, name);
        const TableConfig& table = use(key, name);
        const bool grams = table.rows == TableRows::ngrams;
        if (table.rows == TableRows::positions || (grams && table.ngrams.max_ngram != 2))
            throw_usage("{}: table \"{}\" has rows for {}: a sum reads one for each token or 2-gram", key,
                        name,
                        grams ? fmt::format("up to {}-grams", table.ngrams.max_ngram)
                              : std::string(word_of(table.rows)));
        if (in_input_.count(name))
            throw_usage("{}: \"{}\" is in model.input as a table, which adds it already", key, name);
        in_sums_.insert(name);
    }

    void check_values(const std::string& key, const std::string& name) {
        if (name.empty()) return;
        expect_tokens(key, name);
        if (in_input_.count(name)) throw_usage("{}: \"{}\" is in model.input too", key, name);
        if (in_sums_.count(name)) throw_usage("{}: \"{}\" is a term of a sum too", key, name);
        in_values_.insert(name);
    }

    void check_head() {
        const std::string& name = parts_.head.tied_to;
        if (name.empty()) return;
        expect_tokens("model.head.tied_to", name);
        if (parts_.find_table(name)->exchange == TableExchange::rows)
            throw_usage(
                "model.tables.{0}.exchange is rows, but the head is tied to \"{0}\" (model.head.tied_to), and its gradient fills "
                "all rows; use whole",
                name);
        if (in_values_.count(name))
            throw_usage("model.head.tied_to: table \"{}\" is a value_table too", name);
    }

    const TableConfig& use(const std::string& key, const std::string& name) {
        const TableConfig* const table = parts_.find_table(name);
        if (!table) throw_usage("{}: no table \"{}\" in model.tables{}", key, name, suggestion(name, names_));
        used_.insert(name);
        return *table;
    }
    void expect_tokens(const std::string& key, const std::string& name) {
        const TableRows rows = use(key, name).rows;
        if (rows != TableRows::tokens)
            throw_usage("{}: table \"{}\" has rows for {}, rows for tokens are needed", key, name,
                        word_of(rows));
    }

    const ModelParts& parts_;
    std::set<std::string> names_, used_, in_input_, in_sums_, in_values_;
};

}  // namespace

void TableConfig::fields(FieldVisitor& v) {
    v.choice("rows", rows, "index of the rows; ngrams: hashes of the last tokens");
    init_field(v, "init", init, "initial values of the table");
    v.field("max_ngram", ngrams.max_ngram, "largest n of the n-grams with n = 2, 3, ... (rows=ngrams)",
            {2, 16});
    v.field("num_rows", ngrams.num_rows, "number of rows (rows=ngrams); n-grams of equal hash share a row",
            {1, 1 << 24});
    v.choice(
        "hash", ngrams.hash,
        "hash of an n-gram (rows=ngrams); mixed: tokens before the document are absent; products: 2-grams, across documents, "
        "((36313*token) xor (27191*previous)) mod (num_rows - 1) in wrapping 32 bits, the last row for a row's first token");
    v.field(
        "sign_rows", ngrams.sign_rows,
        "number of fixed rows of random signs, for hash=products; row (token xor previous) mod sign_rows multiplies the "
        "embedding of the 2-gram; 0: no signs",
        {0, 1 << 20});
    v.choice(
        "exchange", exchange,
        "exchange of the gradient between ranks; whole: all rows; rows: rows looked up in the step, sent to the ranks that "
        "update them. Results in f32 are bitwise equal; rows is faster if few rows are looked up");
}

void TableConfig::check(const std::string& key) const {
    const bool products = ngrams.hash == NgramHash::products;
    if (products && (rows != TableRows::ngrams || ngrams.max_ngram != 2))
        throw_usage("{}.hash: products is a hash of 2-grams, not of {}", key,
                    rows == TableRows::ngrams ? fmt::format("up to {}-grams", ngrams.max_ngram)
                                              : std::string(word_of(rows)));
    if (products && ngrams.num_rows < 2)
        throw_usage("{}.num_rows {}: hash products needs at least 2: the last row is for first tokens", key,
                    ngrams.num_rows);
    if (exchange == TableExchange::rows && rows == TableRows::positions)
        throw_usage("{}.exchange is rows, but every rank looks up all rows for positions; use whole", key);
    if (ngrams.sign_rows > 0 && !products)
        throw_usage("{}.sign_rows {}: signs belong to ngrams of hash products", key, ngrams.sign_rows);
}

void check_tables(const ModelParts& parts) {
    TableCheck(parts).run();
}

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
    if (parts_.find_table(table)->ngrams.sign_rows > 0) text += ", times fixed signs";
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
            return {Dimension::rows, config.ngrams.num_rows};
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
    const int64_t rows = parts_.find_table(table)->ngrams.sign_rows;
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
    const ValueId rows = w_.compute_value(name, w_.extents.tokens(), looked_up(table));
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
        at->second = is_sharded(table) ? into_stream(w_, rows) : shared_out(w_, rows);
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
