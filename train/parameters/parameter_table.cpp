#include "train/parameters/parameter_table.h"

#include "kernels/device/error.h"

namespace speedrun {

int64_t Parameter::numel() const {
    int64_t product = 1;
    for (int64_t dim : shape) product *= dim;
    return product;
}

std::vector<int64_t> Parameter::whole_shape() const {
    std::vector<int64_t> whole = shape;
    int64_t& size = whole[static_cast<size_t>(cut.dimension)];
    size = cut.whole > 0 ? cut.whole : size * cut.parts;
    return whole;
}

int64_t Parameter::whole_numel() const {
    int64_t product = 1;
    for (const int64_t dim : whole_shape()) product *= dim;
    return product;
}

std::vector<Parameter::RowBlock> Parameter::row_blocks(int64_t heads) const {
    if (!is_matrix()) throw_internal("{} is no matrix", name);
    std::vector<RowBlock> blocks;
    int64_t stack = 0, first = 0;  // index and first row
    for (const int64_t rows : stacks()) {
        const bool by_heads = heads > 0 && stack++ < head_rows.stacks;
        if (by_heads && head_rows.heads % heads != 0)
            throw_internal("{}: {} heads are no multiple of {}", name, head_rows.heads, heads);
        const int64_t count = by_heads ? head_rows.heads / heads : 1;
        if (!cut.all()) {
            blocks.push_back({{first, rows}, count});
        } else {
            for (int64_t block = 0; block < count; ++block)
                blocks.push_back({{first + block * (rows / count), rows / count}});
        }
        first += rows;
    }
    return blocks;
}

int ParameterTable::declare(std::string name, const std::vector<Extent>& extents, InitRule init) {
    // Names of tables, networks and terms of sums are from the config.
    if (contains(name)) throw_usage("model: two parameters have the name {}: change one of the names", name);
    Parameter parameter;
    parameter.id = size();
    parameter.name = std::move(name);
    parameter.init = std::move(init);
    parameter.full_precision = extents.size() == 1;
    for (const Extent& extent : extents) {
        if (extent.parts > 1) {
            if (!parameter.cut.all())
                throw_internal("parameter {} is cut along two dimensions", parameter.name);
            parameter.cut = {.dimension = static_cast<int>(parameter.shape.size()),
                             .parts = extent.parts,
                             .index = tensor_index_,
                             .stacks = parameter.cut.stacks,
                             .whole = extent.whole};
        }
        if (parameter.shape.empty()) parameter.cut.stacks = extent.stacks;
        parameter.dimensions.push_back(extent.dimension);
        parameter.shape.push_back(extent.size);
    }
    parameters_.push_back(std::move(parameter));
    return parameters_.back().id;
}

void ParameterTable::set_uses(int id, std::vector<UnitUse> uses) {
    Parameter& parameter = parameters_[static_cast<size_t>(id)];
    if (uses.empty()) throw_internal("{}: no node uses it", parameter.name);
    for (size_t i = 1; i < uses.size(); ++i)
        if (uses[i].unit <= uses[i - 1].unit)
            throw_internal("{}: unit {} after unit {}", parameter.name, uses[i].unit, uses[i - 1].unit);
    parameter.uses = std::move(uses);
}

int64_t ParameterTable::numel() const {
    int64_t sum = 0;
    for (const Parameter& parameter : parameters_) sum += parameter.numel();
    return sum;
}

int64_t ParameterTable::whole_numel() const {
    int64_t sum = 0;
    for (const Parameter& parameter : parameters_) sum += parameter.whole_numel();
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
