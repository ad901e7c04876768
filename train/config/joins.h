// Sums of the stream with values of other places of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/fields/field_visitor.h"

namespace speedrun {

// A value of another place, times a learned factor.
struct InjectedConfig {
    static constexpr const char *kFirst = "first", *kStream = "stream";

    std::string table = {};          // name of a table of rows; empty: `of`
    std::string of = kFirst;         // a place of the stream (stream_place), or kStream, the current stream
    double start = 0;                // factor
    std::string network = {};        // network that computes the factor
    std::string value_name() const;  // "after_3", in the names of parameters
    std::string factor_name() const { return value_name() + "_scale"; }
    bool is_stream() const { return table.empty() && of == kStream; }
    void fields(FieldVisitor& v);
};

// The stream after a sublayer: x ← r·x + p·sublayer + Σ h·injected, with learned factors.
struct JoinConfig {
    double stream = 1, output = 1;  // r, p at the start
    std::string network = {};       // network that computes both
    std::vector<InjectedConfig> inject = {};
    void fields(FieldVisitor& v);
    // Throws a usage error, independent of the tables of the model.
    void validate(const std::string& key) const;
};
inline constexpr const char* kJoinHelp =
    "the stream becomes r*x + p*this + the injected values, with learned r and p; null: x + this";

// The input of a layer: x ← a·x + b·x0 with x0 the output of model.input; or a·x + Σ h·added.
struct MixConfig {
    double start = 1;          // a; b starts at 0
    std::string network = {};  // network that computes a
    std::vector<InjectedConfig> add = {};
    void fields(FieldVisitor& v);
};

// The output of layer `from`, added to the input of layer `to`, times the sigmoid of a learned number and a factor that a
// network computes.
struct SkipConfig {
    int64_t from = 0, to = 0;
    double start = -1.5;
    std::string network = {};
    double network_start = 1;
    void fields(FieldVisitor& v);
};

}  // namespace speedrun
