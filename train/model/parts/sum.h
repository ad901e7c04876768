// Weighted sums at named slots of the model: residual connections, skips, mixes and rows of tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/fields/field_visitor.h"

namespace speedrun {

struct ModelParts;
struct SumLayer;  // train/model/layers.h

// constant · scale · gain · sigmoid(gate) · source. An absent factor is 1.
struct SumTerm {
    static constexpr const char *kStream = "stream", *kOutput = "output";

    std::string of = {};     // source: a place of the stream (StreamPlace), kStream or kOutput
    std::string table = {};  // source: rows of this table
    double constant = 1;
    std::optional<double> scale = {}, gain = {}, gate = {};  // initial values of learned numbers
    std::string network = {};                                // computes `scale` per token
    std::string name = {};                                   // parameter, instead of scale_name()

    void fields(FieldVisitor& v);
    bool is_place() const { return table.empty() && of != kStream && of != kOutput; }
    double initial_factor() const;
};

inline constexpr const char* kAfterHelp =
    "terms of the sum that is the stream after this sublayer; empty: [{\"of\": \"stream\"}, {\"of\": \"output\"}]";
inline constexpr FieldVisitor::Retired kJoinRetired{
    "null", "\"after\": [{\"of\": \"stream\", \"scale\": 1}, {\"of\": \"output\", \"scale\": 1}]"};

// An element of a list of sums.
struct SumConfig {
    std::vector<SumTerm> terms = {};
    void fields(FieldVisitor& v);
};

enum class SumSlot : uint8_t { input, enter, values, attention, mlp, output };

// A sum of the model with its slot. An empty one of attention or mlp is stream + output.
struct Sum {
    SumSlot slot;
    int64_t layer;    // StreamPlace::kInput for model.input, the number of layers for model.output
    std::string key;  // key of the terms, such as "model.layers, layer 3: mlp.after"
    std::vector<SumTerm> terms;

    bool in_layer() const { return slot != SumSlot::input && slot != SumSlot::output; }
};
// Returns all sums in the order of the graph. Attention has an entry of slot values even if that list is empty.
std::vector<Sum> sums_of(const ModelParts& parts);

// Returns the name of the scale in the unit of the slot, such as "attn.after_3_scale".
std::string scale_name(SumSlot slot, const SumTerm& term);

// Throws a usage error, with key and values, for terms that cannot be built. Tables and networks have their own checks.
void check_sums(const ModelParts& parts);

// Appends the terms to layer.terms, with their parameters and nodes.
void build_sum(SumLayer& layer, SumSlot slot, const std::vector<SumTerm>& terms);

}  // namespace speedrun
