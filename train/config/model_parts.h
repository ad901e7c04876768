// A model in parts: tables, input of the first layer, layers, output of the last layer, head and loss. The graph of the model
// follows from the parts and the sizes of ModelConfig alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/config/choices.h"
#include "train/fields/field_visitor.h"
#include "train/model/parts/attention.h"
#include "train/model/parts/head.h"
#include "train/model/parts/loss.h"
#include "train/model/parts/mlp.h"
#include "train/model/parts/networks.h"
#include "train/model/parts/stream.h"
#include "train/model/parts/tables.h"

namespace speedrun {

struct NormConfig {
    NormKind type = NormKind::rmsnorm;
    bool gain = false, bias = false;  // learned
    double epsilon = 1e-5;            // also for QK-norms
    void fields(FieldVisitor& v);
};

struct LayerConfig {
    std::vector<SumConfig> enter = {};  // in order
    std::optional<AttentionConfig> attention = AttentionConfig{};
    std::optional<MlpConfig> mlp = MlpConfig{};
    bool empty() const { return enter.empty() && !attention && !mlp; }
    void fields(FieldVisitor& v);
};

// Layers that differ from LayersConfig::each, with their numbers, such as "4,11" or "0-2".
struct LayersAt {
    std::string numbers = {};
    std::optional<LayerConfig> layer = {};  // none: removes these layers
};

struct LayersConfig {
    int64_t count = 4;
    LayerConfig each;
    std::vector<LayersAt> at = {};
    void fields(FieldVisitor& v);
    // Returns all layers in order; nullopt for a removed layer. Throws a usage error for a number out of range or named twice.
    std::vector<std::optional<LayerConfig>> resolved() const;
};

struct ModelParts {
    std::vector<std::pair<std::string, TableConfig>> tables;  // in order of declaration
    std::vector<std::pair<std::string, Scheduled<int64_t>>> windows;
    std::vector<std::pair<std::string, NetworkConfig>> networks;
    NormConfig norms;
    std::vector<StreamPartConfig> input;
    LayersConfig layers;
    std::vector<StreamPartConfig> output;
    HeadConfig head;
    LossConfig loss;

    void fields(FieldVisitor& v);
    // Throws a usage error, with key and values, for parts that do not fit each other or the width.
    void validate(int64_t model_dim) const;

    const TableConfig* find_table(const std::string& name) const;  // null: unknown name
    // Returns the largest number of keys per query of this attention in one stage; 0: all. Throws a usage error for an unknown
    // name.
    int64_t window_of(const AttentionConfig& attention, int64_t layer) const;
    // Returns the sizes of a window that YaRN follows in the stages so far (ModelConfig::in_stage), without repeats; empty for
    // other windows.
    std::vector<int64_t> past_of(const std::string& window) const;
    std::vector<std::pair<std::string, std::vector<int64_t>>> window_past = {};
    // Returns the hash settings of the table of n-grams; {} if the model has none.
    NgramTable ngram_table() const;
    bool has_positions() const;  // true if a table of positions exists, which limits the sequence length
    int64_t num_layers() const;  // without removed layers
    bool uses_fp8() const;       // true if any matmul of training uses FP8
};

}  // namespace speedrun
