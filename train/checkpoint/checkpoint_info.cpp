#include "train/checkpoint/checkpoint_info.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "data/dataset.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *kInfoFile = "checkpoint.json", *kSumsFile = "XXH128SUMS", *kOldSumsFile = "SHA256SUMS",
                     *kFormat = "speedrun-checkpoint";
constexpr double kMaxMs = 1e13;  // 300 years
constexpr int64_t kMaxSteps = 1LL << 40;
constexpr int64_t kFormatVersion = 3;  // versions 1 and 2 have SHA-256 sums

int64_t count_of(const Json& json) {
    const int64_t count = whole_number(json);
    if (count < 0) throw JsonError("expected a whole number not below 0, got " + shown(json));
    return count;
}

// Throws JsonError unless the number of elements fits an int64.
std::vector<int64_t> shape_of(const Json& json) {
    std::vector<int64_t> shape;
    int64_t numel = 1;
    for (const Json& dim : json.get_ref<const Json::array_t&>()) {
        shape.push_back(count_of(dim));
        if (__builtin_mul_overflow(numel, shape.back(), &numel))
            throw JsonError("no tensor has the shape " + shown(json));
    }
    return shape;
}

// dtype is written only if it is not f32; keeps f32 files byte-identical.
Json json_of(const CheckpointTensor& tensor) {
    Json json = {{"name", tensor.name}, {"shape", tensor.shape}};
    if (tensor.dtype != DType::f32) json["dtype"] = name_of(tensor.dtype);
    return json;
}

CheckpointTensor tensor_of(const Json& json) {
    CheckpointTensor tensor{json.at("name").get<std::string>(), shape_of(json.at("shape"))};
    if (!json.contains("dtype")) return tensor;
    const Json& dtype = json.at("dtype");
    for (const DType known : {DType::f32, DType::bf16}) {
        tensor.dtype = known;
        if (dtype.get<std::string>() == name_of(known)) return tensor;
    }
    throw JsonError("expected a dtype f32 or bf16, got " + shown(dtype));
}

Json json_of(const CheckpointFile& file) {
    return {{"file", file.name}, {"bytes", file.bytes}};
}

CheckpointFile file_of(const Json& json) {
    CheckpointFile file;
    file.name = json.at("file").get<std::string>();
    file.bytes = count_of(json.at("bytes"));
    return file;
}

// File names are fixed by rank: any other name could be a path out of the folder.
std::vector<CheckpointFile> files_of(const Json& list) {
    std::vector<CheckpointFile> files;
    for (const Json& entry : list.get_ref<const Json::array_t&>()) {
        const std::string expected = rank_file_name(static_cast<int64_t>(files.size()));
        files.push_back(file_of(entry));
        if (files.back().name != expected)
            throw JsonError("files: expected " + expected + ", found " + shown(entry.at("file")));
    }
    return files;
}

double number_between(const Json& json, const char* key, double low, double high) {
    const double value = json.at(key).get<double>();
    if (!(value >= low && value <= high))
        throw JsonError(fmt::format("{}: expected a number from {:g} to {:g}, got {}", key, low, high,
                                    shown(json.at(key))));
    return value;
}

Json json_of(const MeasuredTimes& times) {
    Json json = {
        {"train_ms", times.train_ms},
        {"data_ms", times.data_ms},
        {"optimizer_ms", times.optimizer_ms},
        {"comm_exposed_ms", times.comm_exposed_ms},
        {"comm_ms", times.comm_ms},
        {"time_to_target_ms", times.time_to_target_ms ? Json(*times.time_to_target_ms) : Json(nullptr)}};
    if (times.validations_from > 0) json["validations_from"] = times.validations_from;
    return json;
}

MeasuredTimes times_of(const Json& json) {
    MeasuredTimes times;
    const auto ms = [&](const char* key) { return number_between(json, key, 0, kMaxMs); };
    times.train_ms = ms("train_ms");
    times.data_ms = ms("data_ms");
    times.optimizer_ms = ms("optimizer_ms");
    times.comm_exposed_ms = number_between(json, "comm_exposed_ms", -kMaxMs, kMaxMs);
    if (json.contains("comm_ms")) times.comm_ms = ms("comm_ms");  // older checkpoints lack it
    if (!json.at("time_to_target_ms").is_null()) times.time_to_target_ms = ms("time_to_target_ms");
    if (json.contains("validations_from")) times.validations_from = count_of(json.at("validations_from"));
    return times;
}

CheckpointInfo info_of(const Json& json) {
    CheckpointInfo info;
    info.step = count_of(json.at("step"));
    if (info.step > kMaxSteps) throw JsonError("step: no run has " + shown(json.at("step")) + " steps");
    info.tokens = count_of(json.at("tokens"));
    info.next_row = count_of(json.at("loader").at("next_row"));
    info.seed = whole_number(json.at("seed"));
    info.next_lr_factor = number_between(json.at("schedule"), "next_lr_factor", 0, 1e9);
    info.train_loss = json.at("train_loss").get<double>();
    info.precision = json.at("precision").get<std::string>();
    info.ranks = count_of(json.at("ranks"));
    info.mesh = json.at("mesh").get<std::string>();
    info.strategy = json.at("strategy").get<std::string>();
    info.written_by = json.at("written_by").get<std::string>();
    info.config = json.at("config").dump(2);
    if (json.contains("data")) info.data = json.at("data").dump(1);
    if (json.contains("origin")) info.origin = json.at("origin").dump();
    for (const Json& tensor : json.at("tensors")) info.tensors.push_back(tensor_of(tensor));
    info.files = files_of(json.at("files"));
    info.measured = times_of(json.at("measured"));
    return info;
}

const std::string& sum_of(const std::map<std::string, std::string>& sums, const std::string& path,
                          const std::string& name) {
    const auto found = sums.find(name);
    if (found == sums.end()) throw_data("{}: lists no {}", path, name);
    return found->second;
}

}  // namespace

std::map<std::string, std::string> read_sums(const std::string& path) {
    std::istringstream file(read_text_file(path));
    std::map<std::string, std::string> sums;
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        constexpr size_t kDigits = 32, kName = kDigits + 2;
        const bool digits = line.find_first_not_of("0123456789abcdef") == kDigits;
        if (!digits || line.size() <= kName || line.compare(kDigits, 2, "  ") != 0) {
            throw_data("{}: line {}: expected 32 hexadecimal digits, two blanks and a file name, found '{}'",
                       path, number, shown_text(line));
        }
        sums[line.substr(kName)] = line.substr(0, kDigits);
    }
    return sums;
}

void add_sum(std::string& lines, const std::string& xxh128, const std::string& name) {
    lines += xxh128 + "  " + name + "\n";
}

int64_t CheckpointTensor::numel() const {
    int64_t product = 1;
    for (const int64_t dim : shape) product *= dim;
    return product;
}

std::string checkpoint_name(int64_t step) {
    return fmt::format("step-{:08}", step);
}

int64_t step_of_checkpoint(const std::string& name) {
    constexpr size_t kPrefix = 5, kMaxDigits = 18;
    if (name.rfind("step-", 0) != 0 || name.size() == kPrefix || name.size() > kPrefix + kMaxDigits)
        return -1;
    if (name.find_first_not_of("0123456789", kPrefix) != std::string::npos) return -1;
    return std::stoll(name.substr(kPrefix));
}

std::string rank_file_name(int64_t rank) {
    return fmt::format("rank-{:05}.safetensors", rank);
}

std::string sums_file_name(const std::string& rank_file) {
    return fs::path(rank_file).stem().string() + ".sums";
}

std::vector<std::string> list_checkpoints(const std::string& run) {
    std::vector<std::pair<int64_t, std::string>> found;
    std::error_code error;  // ignored: without a folder there are no checkpoints
    for (const auto& entry : fs::directory_iterator(run + "/checkpoints", error)) {
        const int64_t step = step_of_checkpoint(entry.path().filename().string());
        if (step >= 0) found.emplace_back(step, entry.path().string());
    }
    std::sort(found.rbegin(), found.rend());
    std::vector<std::string> folders;
    for (const auto& [step, folder] : found) folders.push_back(folder);
    return folders;
}

bool is_checkpoint(const std::string& folder) {
    std::error_code error;
    const auto has = [&](const char* file) { return fs::exists(fs::path(folder) / file, error); };
    return has(kInfoFile) || has(kSumsFile) || has(kOldSumsFile);
}

void write_checkpoint_info(FileSystem& system, const std::string& folder, const CheckpointInfo& info) {
    Json json = {{"format", kFormat},
                 {"format_version", kFormatVersion},
                 {"written_by", info.written_by},
                 {"step", info.step},
                 {"tokens", info.tokens},
                 {"loader", {{"next_row", info.next_row}}},
                 {"seed", info.seed},
                 {"schedule", {{"next_lr_factor", info.next_lr_factor}}},
                 {"train_loss", info.train_loss},
                 {"precision", info.precision},
                 {"ranks", info.ranks},
                 {"mesh", info.mesh},
                 {"strategy", info.strategy},
                 {"config", parse_json<Json>(info.config)},
                 {"tensors", Json::array()},
                 {"files", Json::array()},
                 {"measured", json_of(info.measured)}};
    if (!info.data.empty()) json["data"] = parse_json<Json>(info.data);
    if (!info.origin.empty()) json["origin"] = parse_json<Json>(info.origin);
    for (const CheckpointTensor& tensor : info.tensors) json["tensors"].push_back(json_of(tensor));
    std::string sums;
    for (const CheckpointFile& file : info.files) {
        json["files"].push_back(json_of(file));
        add_sum(sums, file.xxh128, file.name);
        add_sum(sums, file.sums_xxh128, sums_file_name(file.name));
    }
    add_sum(sums, write_durable(system, folder + "/" + kInfoFile, json.dump(1) + "\n"), kInfoFile);
    write_durable(system, folder + "/" + kSumsFile, sums);
}

CheckpointInfo read_checkpoint_info(const std::string& folder) {
    const std::string path = folder + "/" + kInfoFile, sums_path = folder + "/" + kSumsFile;
    std::error_code error;
    if (fs::exists(fs::path(folder) / kOldSumsFile, error) && !fs::exists(sums_path, error)) {
        throw_data(
            "{}: a checkpoint of {} version 1 or 2, this program reads version {}; continue it with the program that wrote it",
            folder, kFormat, kFormatVersion);
    }
    const auto sums = read_sums(sums_path);
    const std::string expected = sum_of(sums, sums_path, kInfoFile), actual = xxh128_file(path);
    if (actual != expected) throw_data("{}: XXH128 is {}, {} says {}", path, actual, sums_path, expected);
    CheckpointInfo info = parse_checkpoint_info(read_text_file(path), path);
    for (CheckpointFile& f : info.files) {
        f.xxh128 = sum_of(sums, sums_path, f.name);
        f.sums_xxh128 = sum_of(sums, sums_path, sums_file_name(f.name));
    }
    return info;
}

CheckpointInfo parse_checkpoint_info(std::string_view text, const std::string& path) {
    try {
        const Json json = parse_json<Json>(text, {.bytes = kMaxFileBytes});
        const int64_t version = whole_number(json.at("format_version"));
        if (json.at("format").get<std::string>() != kFormat || version != kFormatVersion) {
            throw_data("{}: is {} version {}, this program reads {} version {}", path,
                       shown(json.at("format")), version, kFormat, kFormatVersion);
        }
        return info_of(json);
    } catch (const Json::exception& error) {
        throw_data("{}: {}", path, error.what());
    } catch (const JsonError& error) {
        throw_data("{}: {}", path, error.what());
    }
}

std::string to_text(const CheckpointFile& file) {
    Json json = json_of(file);
    json["xxh128"] = file.xxh128;
    json["sums_xxh128"] = file.sums_xxh128;
    return json.dump();
}

CheckpointFile checkpoint_file_from_text(const std::string& text) {
    const Json json = parse_json<Json>(text);
    CheckpointFile file = file_of(json);
    file.xxh128 = json.at("xxh128").get<std::string>();
    file.sums_xxh128 = json.at("sums_xxh128").get<std::string>();
    return file;
}

}  // namespace speedrun
