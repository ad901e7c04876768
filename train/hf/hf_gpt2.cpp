#include "train/hf/hf_gpt2.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/checkpoint/problem_list.h"
#include "train/checkpoint/safetensors.h"
#include "train/hf/hf_config.h"
#include "train/hf/hf_files.h"
#include "train/hf/hf_index.h"
#include "train/hf/hf_names.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "/model.safetensors";
constexpr const char* kIndex = "/model.safetensors.index.json";  // index of several files

std::string describe(DType dtype, const std::vector<int64_t>& shape) {
    return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ","));
}

std::vector<float> to_floats(const NamedTensor& tensor) {
    std::vector<float> values(tensor.bytes.size() / static_cast<size_t>(size_of(tensor.dtype)));
    if (tensor.dtype == DType::f32) {
        std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    } else {
        const auto* first = reinterpret_cast<const Bf16*>(tensor.bytes.data());
        std::copy(first, first + values.size(), values.begin());
    }
    return values;
}

std::vector<float> transpose(const std::vector<float>& values, int64_t rows, int64_t cols) {
    std::vector<float> result(values.size());
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c)
            result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * cols + c)];
    }
    return result;
}

// The weights' files.
struct WeightFiles {
    std::string path;  // the only file, or the index
    std::vector<std::string> files;
    std::map<std::string, std::string> index;  // file by tensor; empty: one file
};

WeightFiles weight_files(const std::string& folder) {
    const std::string path = folder + kWeights;
    std::error_code error;  // avoids an exception, e.g. for a link to itself
    if (fs::exists(path, error)) return {.path = path, .files = {path}, .index = {}};
    if (fs::exists(folder + kIndex, error)) {
        WeightFiles several{.path = folder + kIndex, .files = {}, .index = read_hf_index(folder + kIndex)};
        std::set<std::string> names;
        for (const auto& [tensor, file] : several.index) names.insert(file);
        for (const std::string& name : names) several.files.push_back((fs::path(folder) / name).string());
        return several;
    }
    throw_data(
        "{}: not there, and no model.safetensors.index.json; other formats are not read: "
        "save_pretrained(DIR) writes this one",
        path);
}

// The tensors by the library's full names, and all errors found.
class Tensors {
  public:
    explicit Tensors(WeightFiles files) : path_(std::move(files.path)) {
        for (const std::string& file : files.files) add(file, files.index);
        for (const auto& [tensor, file] : files.index)
            problem(fmt::format("{} has no tensor {}", file, tensor));
    }
    std::vector<float> take(const Parameter& p, const ModelConfig& model) {
        const HfName name = hf_name(p);
        const auto found = tensors_.find(name.name);
        if (found == tensors_.end()) return problem("missing tensor " + name.name);
        const NamedTensor tensor = std::move(found->second);
        tensors_.erase(found);
        std::vector<int64_t> expected = hf_shape(p, model);
        // A shorter sequence uses the first positions only.
        const bool longer =
            p.name == "position.weight" && tensor.shape.size() == 2 && tensor.shape[0] > expected[0];
        if (longer) expected[0] = tensor.shape[0];
        if (tensor.shape != expected || tensor.dtype == DType::i32) {
            return problem(fmt::format("{} is {}, expected {} or bf16", name.name,
                                       describe(tensor.dtype, tensor.shape), describe(DType::f32, expected)));
        }
        std::vector<float> values = to_floats(tensor);
        if (const int64_t at = first_not_finite(values); at >= 0)
            return problem(
                fmt::format("{} has {} at number {}", name.name, values[static_cast<size_t>(at)], at));
        if (name.transposed) values = transpose(values, expected[0], expected[1]);
        values.resize(static_cast<size_t>(p.numel()));  // drops positions; the padding is zero
        return values;
    }
    // The head of a tied model may be stored as a copy, which must be equal.
    void drop_copy_of_embedding(const std::vector<float>& embedding) {
        const auto found = tensors_.find("lm_head.weight");
        if (found == tensors_.end()) return;
        std::vector<float> head = to_floats(found->second);
        head.resize(embedding.size());
        const bool same = std::memcmp(head.data(), embedding.data(), head.size() * sizeof(float)) == 0;
        if (!same) problem("lm_head.weight is not wte.weight, although config.json ties them");
        tensors_.erase(found);
    }
    void expect_nothing_else() {
        for (const auto& [name, tensor] : tensors_) problem("unknown tensor " + shown_text(tensor.name));
        if (problems_.any())
            throw_data("{} is not the model of its config.json: {}", path_, problems_.text());
    }

  private:
    // Adds the tensors of a file, and removes them from the index.
    void add(const std::string& file, std::map<std::string, std::string>& index) {
        const std::string name_of_file = fs::path(file).filename().string();
        for (NamedTensor& tensor : read_safetensors(file)) {
            if (const auto at = index.find(tensor.name); at != index.end() && at->second == name_of_file)
                index.erase(at);
            if (is_hf_mask(tensor.name)) continue;
            // Files of the bare GPT2Model, such as OpenAI's upload, lack the prefix.
            const bool full = tensor.name.starts_with("transformer.") || tensor.name == "lm_head.weight";
            std::string name = full ? tensor.name : "transformer." + tensor.name;
            const auto [at, is_new] = tensors_.emplace(std::move(name), std::move(tensor));
            if (!is_new)
                problem(fmt::format(
                    "two tensors are {}: with and without the prefix transformer., or in two files",
                    at->first));
        }
    }
    std::vector<float> problem(const std::string& text) {
        problems_.add(text);
        return {};
    }

    const std::string path_;
    std::map<std::string, NamedTensor> tensors_;
    ProblemList problems_;
};

}  // namespace

std::vector<std::vector<float>> read_hf_weights(const std::string& folder, const ParameterTable& table,
                                                const ModelConfig& model) {
    Tensors tensors(weight_files(folder));
    std::vector<std::vector<float>> values;
    for (const Parameter& p : table.all()) values.push_back(tensors.take(p, model));
    if (!model.parts.head.tied_to.empty())
        tensors.drop_copy_of_embedding(values[static_cast<size_t>(table.find("embed.weight").id)]);
    tensors.expect_nothing_else();
    return values;
}

void write_hf_gpt2(const std::string& folder, const ModelConfig& model, const ParameterTable& table,
                   const ReadMaster& read, const HfExport& options) {
    if (const std::string problems = gpt2_problems(model); !problems.empty())
        throw_usage("this model is no GPT-2: {}", problems);
    std::vector<NamedTensor> tensors;
    for (const Parameter& p : table.all()) {
        const HfName name = hf_name(p);
        std::vector<float> values = finite_values(p, read);
        if (name.transposed) values = transpose(values, p.shape[0], p.shape[1]);
        tensors.push_back(stored_tensor({name.name, hf_shape(p, model), std::move(values)}, options.dtype));
    }
    make_hf_folder(folder);
    write_hf_config(folder + "/config.json", model, table.find("position.weight").shape[0], options);
    write_safetensors(folder + kWeights, tensors);
}

}  // namespace speedrun
