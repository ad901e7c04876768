// Context of parts while the graph is written: state of the model that parts share, and the input and output of each part.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/model/graph_writer.h"
#include "train/model/nodes/embedding.h"

namespace speedrun {

// Embedding tables of tokens, positions and n-grams, and their lookups (parts/tables.cpp).
class TokenTables {
  public:
    // Declares the tables in the order of the config. value_columns: for each table that attention adds to its values, the columns of
    // this rank.
    TokenTables(GraphWriter& writer, const ModelParts& parts, std::map<std::string, Extent> value_columns);

    ParameterId operator[](const std::string& table) const { return tables_.at(table); }
    // True if tensor ranks share the table. A lookup for the stream is then a term of a sum over ranks.
    bool is_sharded(const std::string& table) const {
        return rows_in(table).parts > 1 || columns_of(table).parts > 1;
    }
    // Returns the table's rows for the batch's tokens or positions, plus rows of the table `positions` unless it is empty.
    ValueId lookup(const std::string& name, const std::string& table, const std::string& positions = "");
    // Returns x plus the table's rows of n-grams. x must be a term if is_sharded(table).
    ValueId add_ngrams(ValueId x, const std::string& table);
    // Returns the table's rows for the batch's tokens or 2-grams, placed as the stream. Each table is looked up once.
    ValueId in_stream(const std::string& table);

  private:
    TableRows rows_of(const std::string& table) const { return parts_.find_table(table)->rows; }
    std::string meaning_of(const std::string& table, TableRows rows) const;
    Extent columns_of(const std::string& table) const;
    // Columns of a lookup. A term has the columns of all ranks.
    Extent looked_up(const std::string& table) const;
    Extent rows_in(const std::string& table) const;
    // Column of the batch with the row numbers; n-grams: of 2 tokens.
    Column ids_of(const std::string& table) const;
    // Records that these ids select the rows to exchange, if the table exchanges rows.
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

// Networks of the model, and the numbers that they compute (parts/networks.cpp).
class Networks {
  public:
    // Declares the parameters of all networks, in the order of the config.
    Networks(GraphWriter& writer, const ModelParts& parts);

    // Returns the layers that a network reads.
    std::vector<int64_t> layers_read() const;
    // Writes the networks that read x, this place of the stream.
    void write(const StreamPlace& place, ValueId x);
    // Returns f32 coefficients by their name in the open unit (NetworkOutputs::name): (tokens, count), with the tokens
    // of their reader …
    ValueId number(const std::string& name) const { return given_.at(w_.name(name)); }
    // … or (tokens, heads), with this rank's heads.
    ValueId by_heads(const std::string& name, const Extent& heads);

  private:
    using Reader = NetworkOutputs::Reader;
    struct Network {
        std::string name;
        const NetworkConfig& config;
        StreamPlace place;
        std::vector<NetworkOutputs> requested;
        int64_t count = 0;  // number of coefficients
        ParameterId up, down, bias, scale = kNoParameter;
    };
    // Coefficients of all ranks' heads, and their first column.
    struct Columns {
        ValueId of;
        int64_t first;
    };
    void declare(Network& network);
    ParameterId parameter(const std::string& name, const std::vector<Extent>& extents, const InitRule& init,
                          const std::string& meaning);
    ValueId numbers_of(const Network& network, ValueId x);
    // Consecutive coefficients with equal readers, redistributed together.
    struct Run {
        Reader reader;
        int64_t first, count;
        std::vector<const NetworkOutputs*> requested;
    };
    static std::vector<Run> runs_of(const Network& network);
    void give(const Network& network, ValueId numbers, const Run& run);
    bool is_exchanged(Reader reader) const;
    ValueId at_reader(const Network& network, ValueId numbers, const Run& run);

    GraphWriter& w_;
    std::vector<Network> networks_;
    std::map<std::string, ValueId> given_;     // key: NetworkOutputs::name
    std::map<std::string, Columns> of_heads_;  // as given_, for heads split over ranks
};

// Writes model.input up to its first sum (parts/stream.cpp).
ValueId write_stream_input(GraphWriter& writer, const ModelParts& parts, TokenTables& tables);

struct SmearLayer {
    GraphWriter& w;
    ValueId x;  // (tokens, width), replaced by the part
};

struct MlpLayer {
    GraphWriter& w;
    ValueId normed;          // (stream_tokens, width)
    ValueId addend;          // the stream, if it is added to the product of the last matrix, or kNoValue
    ValueId out = kNoValue;  // (stream_tokens, width), set by the part
};

struct SumLayer {
    GraphWriter& w;
    Networks& networks;
    TokenTables& tables;
    const std::map<int64_t, ValueId>& places;  // outputs of earlier layers, by StreamPlace::after
    ValueId stream;                            // (stream_tokens, width)
    ValueId output = kNoValue;                 // output of the sublayer before the sum
    std::vector<WeightedSum::Term> terms = {};
};

struct HeadLayer {
    GraphWriter& w;
    const ModelConfig& config;
    const LossConfig& loss;
    ValueId x;           // (tokens, width), normed
    ParameterId table;   // tied table, or kNoParameter
    int64_t logit_rows;  // rows of a chunk of logits
};

}  // namespace speedrun
