// Numbers that networks of a model compute for its parts, and the places of the stream that networks read.
#pragma once

#include <string>
#include <vector>

#include "train/config/model_parts.h"

namespace speedrun {

// A place of the residual stream: "first" (the output of model.input before injection), "input" (the input of the first layer),
// "after 3" (the output of layer 3).
struct StreamPlace {
    static constexpr int64_t kFirst = -2, kInput = -1;
    int64_t after = kFirst;  // kFirst, kInput, or the number of a layer
};
// Throws a usage error for any other text. key: the key of the text.
StreamPlace stream_place(const std::string& key, const std::string& text);
// Throws a usage error for a place after the start of `layer`.
StreamPlace earlier_place(const std::string& key, const std::string& text, int64_t layer,
                          const std::vector<std::optional<LayerConfig>>& layers);

// Numbers per token that one part of the model reads from a network.
struct NetworkNumbers {
    std::string network;
    std::string name;  // name of the values, such as "blocks.3.attn.gate"
    std::string key;   // key that names the network
    int64_t layer;     // reader
    int64_t count;
    double start;   // initial value of each
    bool by_heads;  // one per head
    // Reader: the stream; attention that the tensor axis does not cut (WholeAttention), with all tokens; or the heads of each
    // rank.
    enum class Reader : uint8_t { stream, whole_attention, heads } reader;
};
// Returns the numbers of all networks, in the order of each network's output: numbers of the stream, then numbers of heads, by
// layer, then in the order of reading.
std::vector<NetworkNumbers> network_numbers(const ModelParts& parts);

// Throws a usage error for networks that cannot be built or that no part reads, and for unknown names.
void check_networks(const ModelParts& parts);

}  // namespace speedrun
