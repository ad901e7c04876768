// Writes a model's graph: values, parameters and the nodes common to all parts of a model. build_model.cpp composes the
// model.
#pragma once

#include <any>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <vector>

#include "train/config/config.h"
#include "train/model/model_extents.h"
#include "train/model/model_graph.h"
#include "train/model/nodes/norm.h"
#include "train/model/nodes/weighted_sum.h"

namespace speedrun {

class GraphWriter {
  public:
    // All arguments must outlive the writer.
    GraphWriter(const ModelConfig& config, const ModelParts& parts, const BatchShape& batch);

    ModelGraph model{};
    const BatchShape batch;  // per microbatch
    const ModelExtents extents;

    // Starts the next unit; names of its values and parameters begin with the prefix.
    void begin_unit(std::string name, const std::string& prefix);

    // ---- values; names are local to the unit
    std::string name(const std::string& own) const { return prefix_ + own; }
    Extent rows_of(ValueId value) const { return model.graph[value].extents.front(); }
    ValueId input(const Column& column);  // ids (rows, tokens, per_token); one value per name
    ValueId compute_value(const std::string& name, const Extent& rows, const Extent& columns);
    ValueId f32(const std::string& name, std::vector<Extent> extents);
    ValueId view(ValueId of, const std::string& name, int64_t first, int64_t count);
    ValueId one();  // constant 1, real (1, 1)

    // ---- parameters
    static InitRule filled(double value) { return {InitRule::Kind::constant, static_cast<float>(value)}; }
    InitRule rule(const InitConfig& init, int64_t fan_in) const;
    // meaning: one displayed line (Parameter::meaning).
    struct Start {
        InitRule init;
        std::string meaning;
        HeadRows head_rows = {};
    };
    ParameterId parameter(const std::string& name, const std::vector<Extent>& extents, const Start& start);
    ParameterId number(const std::string& name, double start, std::string meaning);

    // ---- nodes
    template <class T, class... Options>
    const T& add(const typename T::Ports& ports, const Options&... options) {
        return model.graph.add(std::make_unique<T>(ports, options...));
    }
    NormStatistics statistics(const std::string& name, ValueId x);
    // norm(x), with gain and bias if the config has them. needs_amax: linear() reads the largest magnitude of its rows.
    ValueId norm(const std::string& name, ValueId x, bool needs_amax = false);
    struct Weight {
        Extent outputs, inputs;
        InitConfig init;
        bool bias;
        int64_t fan_in;  // inputs of the whole matrix
        const char* meaning;
        HeadRows head_rows = {};
        std::optional<LinearFp8Config> fp8 = {};
        // Learned factor of the last outputs (Linear::Ports::factor).
        struct Factor {
            std::string name;
            double start;
            std::string meaning;
            int64_t outputs;
        };
        std::optional<Factor> factor = {};
        ValueId addend = kNoValue;  // the residual stream, added to the product
    };
    ValueId linear(const std::string& name, ValueId x, const Weight& w);
    // Sigmoids of linear functions of the first columns of x: f32 (tokens, gates), initially 1/2.
    ValueId gate(const std::string& name, ValueId x, const Extent& gates, int64_t columns,
                 const std::string& meaning);
    ValueId sum(const std::string& name, const Extent& columns, const std::vector<WeightedSum::Term>& terms);
    // Writes the sum to y.
    void sum(ValueId y, const std::vector<WeightedSum::Term>& terms);

    // State of one kind of part, for all layers of the graph.
    template <class T>
    T& memo() {
        std::any& held = memos_[typeid(T)];
        if (!held.has_value()) held = T{};
        return std::any_cast<T&>(held);
    }

  private:
    // Declares a delayed scale in the table and returns its index; −1 with other scaling.
    int kept_scale(const std::string& of, const Fp8ScaleConfig& how);

    const ModelConfig& config_;
    const ModelParts& parts_;
    std::string prefix_;
    ValueId one_ = kNoValue;
    std::map<ValueId, ValueId> amaxes_;  // index: output of a norm
    std::map<std::type_index, std::any> memos_;
};

}  // namespace speedrun
