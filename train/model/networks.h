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
    // What has this name in the open unit (NetworkNumbers::name), f32: a number (tokens, 1) where the stream is …
    ValueId number(const std::string& name) const { return given_.at(w_.name(name)); }
    // … and those of this rank's heads, of all tokens (tokens, heads).
    ValueId by_heads(const std::string& name, const Extent& heads);

  private:
    struct Network {
        std::string name;
        const NetworkConfig& config;
        StreamPlace place;
        std::vector<NetworkNumbers> asked;
        int64_t count = 0, of_stream = 0;  // numbers; those of the stream are the first
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
    // Columns of `numbers` from the first on, on all ranks of the tensor axis.
    ValueId shared(const Network& network, ValueId numbers);

    GraphWriter& w_;
    std::vector<Network> networks_;
    std::map<std::string, ValueId> given_;     // by NetworkNumbers::name
    std::map<std::string, Columns> of_heads_;  // likewise, where ranks share heads
};

}  // namespace speedrun
