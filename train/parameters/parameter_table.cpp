#include "train/parameters/parameter_table.h"

#include <utility>

#include "kernels/device/error.h"

namespace speedrun {

int64_t Parameter::numel() const {
    int64_t product = 1;
    for (int64_t dim : shape) product *= dim;
    return product;
}

int ParameterTable::declare(std::string name, const std::vector<Extent>& extents, InitRule init,
                            int64_t matrices) {
    if (contains(name)) throw_internal("parameter {} is declared twice", name);
    Parameter parameter;
    parameter.id = size();
    parameter.name = std::move(name);
    parameter.init = init;
    parameter.matrices = matrices;
    parameter.full_precision = extents.size() == 1;
    for (const Extent& extent : extents) {
        if (cut_by_tensor(extent.dimension))
            parameter.tensor_parallel_dim = static_cast<int>(parameter.shape.size());
        parameter.shape.push_back(extent.size);
    }
    parameters_.push_back(std::move(parameter));
    return parameters_.back().id;
}

void ParameterTable::set_use(int id, const Use& use) {
    Parameter& parameter = parameters_[static_cast<size_t>(id)];
    parameter.unit = use.unit;
    parameter.read_by_backward = use.read_by_backward;
    parameter.also_head = use.also_head;
}

int64_t ParameterTable::numel() const {
    int64_t sum = 0;
    for (const Parameter& parameter : parameters_) sum += parameter.numel();
    return sum;
}

bool ParameterTable::contains(const std::string& name) const {
    for (const Parameter& parameter : parameters_) {
        if (parameter.name == name) return true;
    }
    return false;
}

const Parameter& ParameterTable::find(const std::string& name) const {
    for (const Parameter& parameter : parameters_) {
        if (parameter.name == name) return parameter;
    }
    throw_internal("the model has no parameter named {}", name);
}

}  // namespace speedrun
