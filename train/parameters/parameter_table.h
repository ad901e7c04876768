// The one parameter table: the model declares each parameter once, and optimizers, sync, checkpoint, plan and
// initialisation iterate it. Needs no device: `plan` prints it from a config alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

// How a parameter's values start. Random ones come from the counter-based generator, keyed by the parameter's
// id.
struct InitRule {
    enum class Kind : uint8_t { constant, first_element, normal, uniform } kind = Kind::constant;
    float value = 0;  // the constant, the first element (the others 0), the deviation, or the bound
};

struct Parameter {
    int id = 0;  // index in the table
    std::string name;
    std::vector<int64_t> shape;
    InitRule init;
    int unit = 0;          // that reads it: 0: embeddings; 1 … L: blocks; L+1: final norm and head
    int64_t matrices = 1;  // stacked along dimension 0 that a matrix optimizer treats apart (q, k, v: 3)
    int tensor_parallel_dim = -1;  // dimension that tensor parallelism cuts; -1: none
    bool full_precision = false;   // computed with in f32: vectors and scalars
    bool read_by_backward = true;  // its value; embedding tables are not
    bool also_head = false;        // of unit 0, and read as the head's matrix by the last unit

    int64_t numel() const;
    bool is_matrix() const { return shape.size() == 2; }
};

class ParameterTable {
  public:
    explicit ParameterTable(const ModelConfig& model, int64_t sequence_length);

    const std::vector<Parameter>& all() const { return parameters_; }
    const Parameter& operator[](int id) const { return parameters_[id]; }
    int size() const { return static_cast<int>(parameters_.size()); }
    int num_units() const { return num_units_; }
    int64_t numel() const;
    // The parameter of this name; throws if there is none.
    const Parameter& find(const std::string& name) const;
    bool contains(const std::string& name) const;

  private:
    Parameter& declare(std::string name, std::vector<int64_t> shape, InitRule init, int unit);
    Parameter& declare_table(std::string name, int64_t rows, int64_t width, InitRule init, int unit);
    struct Cut {
        int tensor_parallel_dim = 0;
        int64_t matrices = 1;
    };
    void declare_linear(const std::string& name, int64_t outputs, int64_t inputs, InitRule init, int unit,
                        bool bias, Cut cut);
    void declare_norm(const std::string& name, const ModelConfig& model, int unit);

    std::vector<Parameter> parameters_;
    int num_units_ = 0;
};

}  // namespace speedrun
