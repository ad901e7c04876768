// The residual stream: its places, and the operations before the first layer and after the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config/choices.h"
#include "train/model/parts/smear.h"
#include "train/model/parts/sum.h"

namespace speedrun {

struct LayerConfig;

// A place of the residual stream: "first" (the output of model.input before injection), "input" (the input of the first layer),
// "after 3" (the output of layer 3).
struct StreamPlace {
    static constexpr int64_t kFirst = -2, kInput = -1;
    int64_t after = kFirst;  // kFirst, kInput, or the number of a layer
};
// Throws a usage error for any other text. key: the key of the text.
StreamPlace stream_place(const std::string& key, const std::string& text);
// Throws a usage error for a layer that is missing or removed as well.
StreamPlace place_in(const std::string& key, const std::string& text,
                     const std::vector<std::optional<LayerConfig>>& layers);
// Throws a usage error for a place after the start of `layer`.
StreamPlace earlier_place(const std::string& key, const std::string& text, int64_t layer,
                          const std::vector<std::optional<LayerConfig>>& layers);

enum class StreamPart : uint8_t { table, smear, norm, sum };
template <>
inline constexpr Word<StreamPart> kWords<StreamPart>[] = {{"table", StreamPart::table},
                                                          {"smear", StreamPart::smear},
                                                          {"norm", StreamPart::norm},
                                                          {"sum", StreamPart::sum}};

// One operation on the stream before the first layer or after the last.
struct StreamPartConfig {
    StreamPart type = StreamPart::norm;
    std::string table = {};           // table
    std::vector<SumTerm> terms = {};  // sum: the new stream
    SmearConfig smear = {};
    void fields(FieldVisitor& v);
};

// Throws a usage error, with key and values, for operations of model.input or model.output that cannot be built.
void check_stream(const ModelParts& parts, int64_t model_dim);

}  // namespace speedrun
