// What a layer adds to the stream: attention and MLP.
#pragma once

#include <map>

#include "train/model/nodes/attention.h"
#include "train/model/token_tables.h"

namespace speedrun {

class Sublayers {
  public:
    Sublayers(GraphWriter& writer, const ModelParts& parts, TokenTables& tables, const ModelOptions& options)
        : w_(writer), parts_(parts), tables_(tables), options_(options) {}

    // Attention of the normed stream, in the layer of this number.
    ValueId attention(int64_t layer, const AttentionConfig& config, ValueId normed);
    ValueId mlp(const MlpConfig& config, ValueId normed);

  private:
    struct RotaryKey {
        double base;
        int64_t half;  // frequencies, D/2
        auto operator<=>(const RotaryKey&) const = default;
    };
    const RotaryTables& rotary_tables(const RotaryKey& key);
    // Where the batch is a part of rows: keys beside values that its attention can see, and where these are.
    ValueId exchanged(ValueId k, ValueId v, int64_t window);
    const KeyPlaces& key_places(int64_t window);

    GraphWriter& w_;
    const ModelParts& parts_;
    TokenTables& tables_;
    const ModelOptions options_;
    std::map<RotaryKey, RotaryTables> rotary_;
};

}  // namespace speedrun
