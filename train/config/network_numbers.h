// Which numbers the networks of a model compute, and of what.
#pragma once

#include <string>
#include <vector>

#include "train/config/model_parts.h"

namespace speedrun {

// A place of the residual stream: "first" (what the input gave, before anything was injected), "input" (what enters the first
// layer), "after 3" (what layer 3 gave).
struct StreamPlace {
    static constexpr int64_t kFirst = -2, kInput = -1;
    int64_t after = kFirst;  // that, or the number of a layer
};
// Throws a usage error for any other text. key: where it stands.
StreamPlace stream_place(const std::string& key, const std::string& text);
// Throws a usage error where such a place is not there yet in `layer`.
StreamPlace earlier_place(const std::string& key, const std::string& text, int64_t layer,
                          const std::vector<std::optional<LayerConfig>>& layers);

// Numbers that one place of the model asks a network for, of each token.
struct NetworkNumbers {
    std::string network;
    std::string name;  // of what they are, such as "blocks.3.attn.gate"
    std::string key;   // of the config that names the network
    int64_t layer;     // that reads them
    int64_t count;
    double start;   // of each
    bool by_heads;  // one for each head
    // Who reads them: the stream; attention that ranks of the tensor axis do not share (WholeAttention), of all tokens; heads,
    // of which these ranks have their own.
    enum class Reader : uint8_t { stream, whole_attention, heads } reader;
};
// What all networks are asked for. Each gives its numbers in this order: those of the stream, then those of heads, by layers; within a layer
// as they are read.
std::vector<NetworkNumbers> network_numbers(const ModelParts& parts);

// Throws a usage error for networks that cannot be, or that nothing reads, and for names of none.
void check_networks(const ModelParts& parts);

}  // namespace speedrun
