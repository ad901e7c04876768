#include "train/hf/hf_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "data/durable_file.h"
#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

std::vector<char> to_bytes(const std::vector<float>& values, DType dtype) {
    std::vector<char> bytes(values.size() * static_cast<size_t>(size_of(dtype)));
    if (dtype == DType::f32) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
        auto* to = reinterpret_cast<Bf16*>(bytes.data());
        for (const float value : values) *to++ = Bf16(value);
    }
    return bytes;
}

void expect_new(const std::string& folder) {
    std::error_code error;
    if (fs::exists(fs::symlink_status(folder, error)))
        throw_usage("{} exists: export into a new folder", folder);
}

std::string without_slash(std::string folder) {
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    return folder;
}

}  // namespace

HfStaging::HfStaging(std::string folder) : folder_(without_slash(std::move(folder))) {
    expect_new(folder_);
    std::error_code error;
    if (fs::exists(fs::symlink_status(path(), error)))
        throw_usage("{}: left by an export that was interrupted; remove it", path());
}

HfStaging::~HfStaging() {
    std::error_code error;  // nothing is there after finish()
    fs::remove_all(path(), error);
}

void HfStaging::finish() {
    FileSystem& files = real_file_system();
    check_file(files.rename(path(), folder_), folder_, "renaming");
    const fs::path parent = fs::absolute(folder_).parent_path();
    check_file(files.sync_folder(parent.string()), parent.string(), "syncing");
}

void make_hf_folder(const std::string& folder) {
    expect_new(folder);
    std::error_code error;
    if (!fs::create_directories(folder, error)) throw_usage("{} cannot be made: {}", folder, error.message());
}

int64_t first_not_finite(const std::vector<float>& values) {
    const auto found = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    return found == values.end() ? -1 : found - values.begin();
}

std::vector<float> finite_values(const Parameter& p, const ReadMaster& read) {
    std::vector<float> values(static_cast<size_t>(p.numel()));
    read(p, values.data());
    if (const int64_t at = first_not_finite(values); at >= 0)
        throw Error(ExitCode::diverged,
                    fmt::format("{} has {} at number {}: weights of a run that diverged are not exported",
                                p.name, values[static_cast<size_t>(at)], at));
    return values;
}

NamedTensor stored_tensor(HfTensor tensor, DType dtype) {
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim;
    tensor.values.resize(static_cast<size_t>(count));
    return {std::move(tensor.name), dtype, std::move(tensor.shape), to_bytes(tensor.values, dtype)};
}

void write_generation_config(const std::string& folder, const HfGeneration& generation) {
    const nlohmann::ordered_json config = {{"bos_token_id", generation.separator},
                                           {"eos_token_id", generation.separator},
                                           {"pad_token_id", generation.separator},
                                           {"use_cache", generation.has_cache}};
    write_file(folder + "/generation_config.json", config.dump(2) + "\n");
}

}  // namespace speedrun
