#include "train/checkpoint/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

const char* type_name(DType dtype) {
    return dtype == DType::f32 ? "F32" : dtype == DType::bf16 ? "BF16" : "I32";
}

DType type_of(const std::string& name, const std::string& where) {
    for (DType dtype : {DType::f32, DType::bf16, DType::i32}) {
        if (name == type_name(dtype)) return dtype;
    }
    throw_data("{}: element type {} is not one of F32, BF16, I32", where, name);
}

void sync_to_disk(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool synced = file >= 0 && fsync(file) == 0;
    const int error = errno;
    if (file >= 0) close(file);
    if (!synced)
        throw Error(ExitCode::failure,
                    fmt::format("{}: cannot be synced to disk: {}", path, std::strerror(error)));
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
    Json header = {{"__metadata__", {{"format", "pt"}}}};  // the transformers library wants to read this
    size_t offset = 0;
    for (const NamedTensor& tensor : tensors) {
        header[tensor.name] = {{"dtype", type_name(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {offset, offset + tensor.bytes.size()}}};
        offset += tensor.bytes.size();
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors start aligned
    const uint64_t length = text.size();
    const std::string temporary = path + ".part";
    std::ofstream file(temporary, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text;
    for (const NamedTensor& tensor : tensors)
        file.write(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
    file.close();
    if (!file) throw Error(ExitCode::failure, fmt::format("{}: writing failed (disk full?)", temporary));
    sync_to_disk(temporary);
    std::filesystem::rename(temporary, path);
}

std::vector<NamedTensor> read_safetensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw_data("{}: cannot be opened", path);
    const auto size = static_cast<uint64_t>(file.tellg());
    uint64_t length = 0;
    file.seekg(0);
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    if (!file || length > size - sizeof length) {
        throw_data("{}: a header of {} bytes does not fit a file of {} bytes", path, length, size);
    }
    std::string text(length, ' ');
    file.read(text.data(), static_cast<std::streamsize>(length));
    const Json header = Json::parse(text, nullptr, false);
    if (!file || !header.is_object()) throw_data("{}: the header at byte 8 is not a JSON object", path);

    std::vector<NamedTensor> tensors;
    const uint64_t data = sizeof length + length;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        const std::string where = fmt::format("{}: tensor {}", path, name);
        NamedTensor tensor;
        tensor.name = name;
        std::vector<uint64_t> offsets;
        try {
            tensor.dtype = type_of(entry.at("dtype").get<std::string>(), where);
            tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
            offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
        } catch (const Json::exception& error) {
            throw_data("{}: {}", where, error.what());
        }
        int64_t bytes = size_of(tensor.dtype);
        for (const int64_t dim : tensor.shape) {
            const bool fits = dim >= 0 && (dim == 0 || bytes <= std::numeric_limits<int64_t>::max() / dim);
            if (!fits) throw_data("{}: shape {} is none", where, entry.at("shape").dump());
            bytes *= dim;
        }
        const bool fits = offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= size - data;
        if (!fits || static_cast<int64_t>(offsets[1] - offsets[0]) != bytes) {
            throw_data("{}: data_offsets {} do not hold {} bytes in a file with {} bytes of data", where,
                       entry.at("data_offsets").dump(), bytes, size - data);
        }
        tensor.bytes.resize(offsets[1] - offsets[0]);
        file.seekg(static_cast<std::streamoff>(data + offsets[0]));
        file.read(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
        if (!file) throw_data("{}: reading {} bytes at {} failed", where, bytes, data + offsets[0]);
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

}  // namespace speedrun
