// The tables that tokens, positions and n-grams are looked up in.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "train/model/graph_writer.h"
#include "train/model/nodes/embedding.h"

namespace speedrun {

class TokenTables {
  public:
    // Declares all of them, in the order of the config. value_columns: of those whose rows are mixed into the values of
    // attention, by name, what it has of them on this rank.
    TokenTables(GraphWriter& writer, const ModelParts& parts, std::map<std::string, Extent> value_columns);

    ParameterId operator[](const std::string& table) const { return tables_.at(table); }
    // Do ranks share it? What is looked up in it for the stream is then a term of a sum over them.
    bool gives_terms(const std::string& table) const {
        return rows_in(table).parts > 1 || columns_of(table).parts > 1;
    }
    // Rows of the table for the batch's tokens or positions; with those of a second one, by position, added.
    ValueId lookup(const std::string& name, const std::string& table, const std::string& positions = "");
    // x, which is a term where the table gives terms, with the rows of its n-grams.
    ValueId add_ngrams(ValueId x, const std::string& table);
    // Rows of the table for the batch's tokens or 2-grams, where the stream is; looked up once.
    ValueId in_stream(const std::string& table);

  private:
    TableRows rows_of(const std::string& table) const { return parts_.find_table(table)->rows; }
    std::string meaning_of(const std::string& table, TableRows rows) const;
    Extent columns_of(const std::string& table) const;
    // Columns of what is looked up, those of other ranks included where it is a term.
    Extent looked_up(const std::string& table) const;
    Extent rows_in(const std::string& table) const;
    // What rows of the table the batch asks for; of n-grams those of 2 tokens.
    Column ids_of(const std::string& table) const;
    // Notes, of a table whose rows are exchanged, that these ids say which.
    void note_ids(const std::string& table, const Column& ids);
    SignPorts signs_of(const std::string& table);
    SharedTable sharing_of(const std::string& table) const;

    GraphWriter& w_;
    const ModelParts& parts_;
    const std::map<std::string, Extent> value_columns_;
    std::map<std::string, ParameterId> tables_;
    std::map<std::string, ValueId> in_stream_;
    SignPorts signs_;
};

}  // namespace speedrun
