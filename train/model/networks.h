// Networks that compute numbers for each token (NetworkConfig), and what they are asked for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/config/network_numbers.h"
#include "train/model/graph_writer.h"

namespace speedrun {

class Networks {
  public:
    // Declares the parameters of all of them, in the order of the config.
    Networks(GraphWriter& writer, const ModelParts& parts);

    // Layers whose output some network reads.
    std::vector<int64_t> layers_read() const;
    // Writes the networks that read this place of the stream, which is x.
    void write(const StreamPlace& place, ValueId x);
    // What has this name in the open unit (NetworkNumbers::name), f32: numbers (tokens, count), of the tokens that their
    // reader has …
    ValueId number(const std::string& name) const { return given_.at(w_.name(name)); }
    // … and those of the heads that this rank has of its attention (tokens, heads).
    ValueId by_heads(const std::string& name, const Extent& heads);

  private:
    using Reader = NetworkNumbers::Reader;
    struct Network {
        std::string name;
        const NetworkConfig& config;
        StreamPlace place;
        std::vector<NetworkNumbers> asked;
        int64_t count = 0;  // numbers
        ParameterId up, down, bias, scale = kNoParameter;
    };
    // Where numbers of heads lie among those of all ranks' heads.
    struct Columns {
        ValueId of;
        int64_t first;
    };
    void declare(Network& network);
    ParameterId parameter(const std::string& name, const std::vector<Extent>& extents, const InitRule& init,
                          const std::string& meaning);
    ValueId numbers_of(const Network& network, ValueId x);
    // Neighbours of one reader, which come to ranks of the tensor axis together.
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
    std::map<std::string, ValueId> given_;     // by NetworkNumbers::name
    std::map<std::string, Columns> of_heads_;  // likewise, where ranks share heads
};

}  // namespace speedrun
