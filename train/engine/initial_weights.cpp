#include "train/engine/initial_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "data/json_text.h"
#include "data/shard_patterns.h"
#include "data/text_file.h"
#include "data/xxh128.h"
#include "train/checkpoint/problem_list.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/safetensors.h"
#include "train/comm/joint_check.h"
#include "train/config/config_json.h"
#include "train/config/config_keys.h"
#include "train/engine/weight_source.h"
#include "train/hf/hf_gpt2.h"
#include "train/hf/hf_tokenizer.h"
#include "train/model/build_model.h"
#include "train/runlog/run_folder.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFinalWeights = "/model.safetensors";
constexpr int64_t kShown = 5;  // parameters, and keys, in a message

std::string shape_text(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ","));
}

// Keys that change the model's function or its parameters. Initial values and the loss do not.
std::string model_differences(const Config& there, const Config& here) {
    ProblemList found(kShown);
    for (const KeyDifference& d : key_differences(config_to_json(there), config_to_json(here))) {
        const bool model = d.key.starts_with("model.") && d.key.find("init") == std::string::npos &&
                           !d.key.starts_with("model.loss.") && !d.key.ends_with(".exchange");
        if (model) found.add(fmt::format("{}: {} there, {} here", d.key, d.before, d.after));
    }
    if (there.longest_sequence() != here.longest_sequence())
        found.add(fmt::format("longest sequence of batch and eval: {} there, {} here",
                              there.longest_sequence(), here.longest_sequence()));
    return found.text();
}

// Returns the hash of model.safetensors, or of the sums of all such files.
std::string hash_of_weights(const std::string& folder) {
    if (fs::exists(folder + kFinalWeights)) return xxh128_file(folder + kFinalWeights);
    std::map<std::string, std::string> sums;  // key: file
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors")
            sums[entry.path().filename().string()] = xxh128_file(entry.path().string());
    std::string lines;
    for (const auto& [name, sum] : sums) add_sum(lines, sum, name);
    Xxh128 hash;
    hash.update(lines.data(), lines.size());
    return hash.hex();
}

using Shapes = std::map<std::string, std::vector<int64_t>>;  // key: parameter

// Throws a usage error unless the parameters are these. differences: of the models' keys.
void expect_parameters(const ParameterTable& table, Shapes there, const std::string& folder,
                       const std::string& differences) {
    ProblemList problems(kShown);
    for (const Parameter& p : table.all()) {
        const auto found = there.find(p.name);
        if (found == there.end())
            problems.add(fmt::format("{} {} is not there", p.name, shape_text(p.shape)));
        else if (found->second != p.shape)
            problems.add(fmt::format("{} is {} there, {} here", p.name, shape_text(found->second),
                                     shape_text(p.shape)));
        if (found != there.end()) there.erase(found);
    }
    for (const auto& [name, shape] : there)
        problems.add(fmt::format("{} {} is there and not here", shown_text(name), shape_text(shape)));
    if (!problems.any()) return;
    throw_usage(
        "model.init_from {} does not fit the config's model: {}. Keys that differ: {}. Give these keys the values of the "
        "weights, or start from other weights",
        folder, problems.text(), differences.empty() ? "none" : differences);
}

void expect_tokenizer(const std::string& identity, const std::string& path, const DataIdentity* data) {
    if (identity.empty() || !data) return;
    DataIdentity there;
    try {
        there = data_identity_from_json(identity);
    } catch (const JsonError& error) {
        throw_data("{}: data: {}", path, error.what());
    }
    if (same_tokenizer(there.train, data->train)) return;
    throw_data(
        "model.init_from {}: the weights are for other tokens: {} there, {} in data.train. Prepare the text with the "
        "tokenizer of the weights, or start from random weights",
        path, tokenizer_text(there.train), tokenizer_text(data->train));
}

// Returns the vocabulary of the config's data; nullopt if no file has it.
std::optional<BpeVocabulary> vocabulary_of_data(const Config& config) {
    const DatasetInfo info = find_dataset_info(expand_globs(config.data.val)).value_or(DatasetInfo{});
    std::string file = find_vocabulary(info);
    if (file.empty()) file = config.data.vocabulary;
    if (file.empty() && info.tokenizer != "bytes") return std::nullopt;
    return vocabulary_of({.tokenizer = info.tokenizer, .vocabulary = file});
}

// Returns the tokenizer in the folder of a transformers model, or of an imported run; nullopt if it has none.
std::optional<HfTokenizer> stored_tokenizer(const WeightSource& source) {
    if (source.kind == WeightSource::Kind::transformers) {
        for (const char* name : {"/tokenizer.json", "/vocab.json"})
            if (fs::exists(source.folder + name))
                return HfTokenizer{.tokenizer = "gpt2", .vocabulary = source.folder + name};
        return std::nullopt;
    }
    const std::string path = fmt::format("{}/{}/dataset.json", source.run, kTokenizerFolder);
    if (!fs::exists(path)) return std::nullopt;
    const DatasetInfo info = read_dataset_info(path);
    return HfTokenizer{.tokenizer = info.tokenizer, .vocabulary = find_vocabulary(info)};
}

std::vector<float> to_floats(const std::vector<char>& bytes, DType dtype) {
    std::vector<float> values(bytes.size() / static_cast<size_t>(size_of(dtype)));
    if (dtype == DType::f32) {
        std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
        const auto* const first = reinterpret_cast<const Bf16*>(bytes.data());
        std::copy(first, first + values.size(), values.begin());
    }
    return values;
}

void expect_finite(const std::vector<float>& values, const std::string& name, const std::string& folder) {
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad == values.end()) return;
    throw Error(ExitCode::diverged,
                fmt::format("model.init_from {}: {} has {} at number {}: the run that wrote it has diverged",
                            folder, name, *bad, bad - values.begin()));
}

// Reads one source. Functions with a world are collective.
class WeightReader {
  public:
    WeightReader(World& world, const Config& config, const DataIdentity* data)
        : world_(world),
          config_(config),
          data_(data),
          table_(parameters_of(config.model, config.longest_sequence())) {}

    InitialWeights read() {
        check_together(world_, [&] {
            try {
                source_ = find_weights(config_.model.init_from);
            } catch (const Error& error) {
                throw Error(error.code(), fmt::format("model.init_from {}", error.what()));
            }
        });
        if (source_->kind == WeightSource::Kind::checkpoint) {
            read_checkpoint();
        } else {
            work_together(world_, [&] {
                source_->kind == WeightSource::Kind::final_weights ? read_final() : read_transformers();
            });
        }
        result_.origin.kind = "weights";
        result_.origin.path = source_->folder;
        result_.origin.step = source_->step;
        return std::move(result_);
    }

  private:
    void read_checkpoint() {
        const std::string& folder = source_->folder;
        const auto reader = verify_checkpoint(world_, folder);
        work_together(world_, [&] {
            const CheckpointInfo& info = reader->info();
            const std::string path = folder + "/checkpoint.json";
            source_->step = info.step;
            result_.origin.xxh128 = xxh128_file(folder + "/XXH128SUMS");
            compare(parse_config(info.config, path + ": config", {}), shapes_of(info));
            expect_tokenizer(info.data, path, data_);
            std::map<std::string, DType> types;
            for (const CheckpointTensor& tensor : info.tensors) types[tensor.name] = tensor.dtype;
            for (const Parameter& p : table_.all()) {
                const std::string name = "master/" + p.name;
                std::vector<char> bytes(static_cast<size_t>(p.numel() * size_of(types.at(name))));
                reader->read(name, *box_of({.tensor = name, .ranges = {}}, p.shape), bytes.data());
                add(p, to_floats(bytes, types.at(name)));
            }
        });
    }
    void read_final() {
        const std::string file = source_->folder + kFinalWeights;
        std::map<std::string, NamedTensor> tensors;
        Shapes shapes;
        for (NamedTensor& tensor : read_safetensors(file)) {
            shapes[tensor.name] = tensor.shape;
            tensors[tensor.name] = std::move(tensor);
        }
        compare(read_config(source_->run + "/config.json", {}), std::move(shapes));
        const std::string identity = source_->run + "/data.json";
        if (fs::exists(identity))
            expect_tokenizer(read_text_file(identity), identity, data_);
        else
            expect_vocabulary();
        for (const Parameter& p : table_.all()) {
            const NamedTensor& tensor = tensors.at(p.name);
            if (tensor.dtype != DType::f32)
                throw_data("{}: {} is {}, expected f32", file, p.name, name_of(tensor.dtype));
            add(p, to_floats(tensor.bytes, DType::f32));
        }
        result_.origin.xxh128 = hash_of_weights(source_->folder);
    }
    void read_transformers() {
        const std::string& folder = source_->folder;
        expect_hf_fits(folder, config_.model, config_.longest_sequence());
        expect_vocabulary();
        result_.values = read_hf_weights(folder, table_, config_.model);
        result_.origin.xxh128 = hash_of_weights(folder);
    }

    // Compares the vocabulary of weights without data with that of the run's data.
    void expect_vocabulary() {
        if (!data_) return;
        std::optional<HfTokenizer> tokenizer;
        std::optional<BpeVocabulary> there;
        try {
            tokenizer = stored_tokenizer(*source_);
            if (!tokenizer) return;
            there = vocabulary_of(*tokenizer);
        } catch (const Error& error) {
            result_.warnings.push_back(fmt::format(
                "{}; the tokenizer of the weights is not compared with the data's", error.what()));
            return;
        }
        std::string difference;
        if (const auto here = vocabulary_of_data(config_))
            difference = vocabulary_difference(*there, *here);
        else if (there->separator != data_->train.separator)
            difference = fmt::format("separator {} there, {} here", there->separator, data_->train.separator);
        if (difference.empty()) return;
        throw_data(
            "model.init_from {}: the weights are for other tokens than those of data.train: {}. Prepare the text with the "
            "tokenizer of the weights{}, or start from random weights",
            source_->folder, difference,
            tokenizer->vocabulary.empty() ? "" : fmt::format(" (--vocab {})", tokenizer->vocabulary));
    }

    static Shapes shapes_of(const CheckpointInfo& info) {
        const std::string prefix = "master/";
        Shapes shapes;
        for (const CheckpointTensor& tensor : info.tensors)
            if (tensor.name.starts_with(prefix)) shapes[tensor.name.substr(prefix.size())] = tensor.shape;
        return shapes;
    }
    void compare(const Config& there, Shapes shapes) {
        const std::string differences = model_differences(there, config_);
        expect_parameters(table_, std::move(shapes), source_->folder, differences);
        if (differences.empty()) return;
        result_.warnings.push_back(
            fmt::format("model.init_from {}: the weights were trained in another model: {}", source_->folder,
                        differences));
    }
    void add(const Parameter& p, std::vector<float> values) {
        expect_finite(values, p.name, source_->folder);
        result_.values.push_back(std::move(values));
    }

    World& world_;
    const Config& config_;
    const DataIdentity* const data_;
    const ParameterTable table_;  // whole parameters
    std::optional<WeightSource> source_;
    InitialWeights result_;
};

}  // namespace

InitialWeights read_initial_weights(World& world, const Config& config, const DataIdentity* data) {
    return WeightReader(world, config, data).read();
}

}  // namespace speedrun
