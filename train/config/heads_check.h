// Does what attention does with the dimensions of its heads fit them? All throw a usage error, with the key and its values.
#pragma once

#include <string>

#include "train/config/model_parts.h"

namespace speedrun {

// pairs: of the dimensions of a head.
void check_rotary(const std::string& key, const RotaryConfig& rotary, int64_t pairs);
void check_key_offset(const std::string& key, const AttentionConfig& attention, int64_t pairs);
void check_composed(const std::string& key, const AttentionConfig& attention);
void check_sigmoid(const std::string& key, const GateConfig& gate);  // that no network computes
void check_pairs(const std::string& key, const AttentionConfig& attention);

}  // namespace speedrun
