// Networks: small MLPs that compute numbers per token for other parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/init_config.h"

namespace speedrun {

struct ModelParts;

// A MUDD-like hyper-network that computes scalars per token: out = (W2 gelu(W1 u) + b)·scale, with W2 = 0 at the start. Parts
// that name the network define the scalars (NetworkOutputs).
struct NetworkConfig {
    std::string input = "first";  // u (stream_place)
    int64_t hidden = 64;
    InitConfig init{.type = InitKind::uniform, .value = 0.5773502691896258, .by_fan_in = true};  // ±1/√width
    double scale = 0.1;
    std::string learned_scale =
        {};  // name of a learned scalar, shared by networks; empty: `scale` is constant
    void fields(FieldVisitor& v);
};

// Numbers per token that one part of the model reads from a network.
struct NetworkOutputs {
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
std::vector<NetworkOutputs> network_outputs(const ModelParts& parts);

// Throws a usage error for networks that cannot be built or that no part reads, and for unknown names.
void check_networks(const ModelParts& parts);

}  // namespace speedrun
