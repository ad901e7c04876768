#include "train/checkpoint/weights.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "data/durable_file.h"
#include "data/text_file.h"
#include "train/checkpoint/problem_list.h"
#include "train/checkpoint/safetensors.h"
#include "train/comm/joint_check.h"

namespace speedrun {

namespace {

constexpr const char* kFile = "/model.safetensors";

std::string shape_text(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ","));
}

}  // namespace

void save_weights(const std::string& folder, const ParameterTable& table, const ReadMaster& read,
                  World* world) {
    const bool first = !world || world->rank() == 0;
    const auto by_first = [&](const std::function<void()>& write) {
        const auto work = [&] {
            if (first) write();
        };
        if (world && world->size() > 1)
            work_together(*world, work);
        else
            work();
    };
    std::vector<TensorEntry> entries;
    for (const Parameter& p : table.all()) entries.push_back({p.name, DType::f32, p.whole_shape()});
    std::optional<OutputFile> file;
    by_first([&] {
        std::filesystem::create_directories(folder);
        file.emplace(folder + kFile);
        file->write(safetensors_header(entries));
    });
    std::vector<float> values;  // one parameter at a time: a second copy of all may not fit
    for (const Parameter& p : table.all()) {
        values.resize(static_cast<size_t>(p.whole_numel()));
        read(p, values.data());
        by_first([&] {
            file->write({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
        });
    }
    by_first([&] { file->finish(); });
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
