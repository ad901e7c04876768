#include "train/checkpoint/weights.h"

#include <fmt/format.h>

#include <filesystem>

#include "data/text_file.h"
#include "train/checkpoint/problem_list.h"
#include "train/checkpoint/safetensors.h"

namespace speedrun {

namespace {

constexpr const char* kFile = "/model.safetensors";

std::string shape_text(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ","));
}

}  // namespace

void save_weights(const std::string& folder, const ParameterTable& table, const ReadMaster& read,
                  bool write) {
    std::vector<float> values;
    const auto fetch = [&](const Parameter& p) {
        values.resize(static_cast<size_t>(p.whole_numel()));
        read(p, values.data());
    };
    if (!write) {
        for (const Parameter& p : table.all()) fetch(p);
        return;
    }
    std::vector<TensorEntry> entries;
    for (const Parameter& p : table.all()) entries.push_back({p.name, DType::f32, p.whole_shape()});
    std::filesystem::create_directories(folder);
    write_safetensors(folder + kFile, std::move(entries), [&](size_t i) {
        fetch(table[static_cast<int>(i)]);
        return std::span(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    });
}

void load_weights(const std::string& folder, const ParameterTable& table, ParameterStore& parameters) {
    load_weights_file(folder + kFile, table, parameters);
}

void load_weights_file(const std::string& path, const ParameterTable& table, ParameterStore& parameters) {
    const std::vector<NamedTensor> tensors = read_safetensors(path);
    ProblemList problems;
    for (const NamedTensor& tensor : tensors) {
        if (!table.contains(tensor.name)) problems.add("unknown tensor " + shown_text(tensor.name));
    }
    for (const Parameter& p : table.all()) {
        const NamedTensor* found = nullptr;
        for (const NamedTensor& tensor : tensors) {
            if (tensor.name == p.name) found = &tensor;
        }
        if (!found) {
            problems.add("missing tensor " + p.name);
        } else if (found->shape != p.shape || found->dtype != DType::f32) {
            problems.add(fmt::format("{} is {} {}, expected f32 {}", p.name, name_of(found->dtype),
                                shape_text(found->shape), shape_text(p.shape)));
        } else {
            parameters.assign(p, reinterpret_cast<const float*>(found->bytes.data()));
        }
    }
    if (problems.any()) throw_data("{} does not fit the config's model: {}", path, problems.text());
}

}  // namespace speedrun
