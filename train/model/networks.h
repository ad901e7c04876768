// Networks: small MLPs that compute coefficients per token (NetworkConfig), and the parts that read them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/config/network_numbers.h"
#include "train/model/graph_writer.h"

namespace speedrun {

class Networks {
  public:
    // Declares the parameters of all networks, in the order of the config.
    Networks(GraphWriter& writer, const ModelParts& parts);

    // Returns the layers that a network reads.
    std::vector<int64_t> layers_read() const;
    // Writes the networks that read x, this place of the stream.
    void write(const StreamPlace& place, ValueId x);
    // Returns f32 coefficients by their name in the open unit (NetworkNumbers::name): (tokens, count), with the tokens
    // of their reader …
    ValueId number(const std::string& name) const { return given_.at(w_.name(name)); }
    // … or (tokens, heads), with this rank's heads.
    ValueId by_heads(const std::string& name, const Extent& heads);

  private:
    using Reader = NetworkNumbers::Reader;
    struct Network {
        std::string name;
        const NetworkConfig& config;
        StreamPlace place;
        std::vector<NetworkNumbers> asked;
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
        std::vector<const NetworkNumbers*> asked;
    };
    static std::vector<Run> runs_of(const Network& network);
    void give(const Network& network, ValueId numbers, const Run& run);
    bool travels(Reader reader) const;
    ValueId at_reader(const Network& network, ValueId numbers, const Run& run);

    GraphWriter& w_;
    std::vector<Network> networks_;
    std::map<std::string, ValueId> given_;     // key: NetworkNumbers::name
    std::map<std::string, Columns> of_heads_;  // as given_, for heads split over ranks
};

}  // namespace speedrun
