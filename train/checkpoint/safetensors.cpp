#include "train/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/durable_file.h"
#include "data/errno_text.h"
#include "data/json_text.h"
#include "data/open_file.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

const char* type_name(DType dtype) {
    return dtype == DType::f32 ? "F32" : dtype == DType::bf16 ? "BF16" : "I32";
}

// A tensor as stored. The program has no f16: is_f16 marks two bytes per element of a tensor that is read as f32.
struct StoredTensor {
    TensorEntry entry;
    bool is_f16 = false;
};

void set_type(StoredTensor& tensor, const std::string& name, const std::string& where) {
    tensor.is_f16 = name == "F16";
    if (tensor.is_f16) return;
    for (DType dtype : {DType::f32, DType::bf16, DType::i32}) {
        tensor.entry.dtype = dtype;
        if (name == type_name(dtype)) return;
    }
    throw_data("{}: element type {} is not one of F32, BF16, F16, I32", where, shown_text(name));
}

// IEEE binary16: sign, 5 bits of exponent (bias 15), 10 of mantissa.
float f32_of_f16(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu,
                   mantissa = bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: multiples of 2^-24
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t widened = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
    return std::bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

std::vector<char> widened(const std::vector<char>& halves) {
    std::vector<char> bytes(2 * halves.size());
    for (size_t i = 0; i < halves.size(); i += sizeof(uint16_t)) {
        uint16_t half = 0;
        std::memcpy(&half, halves.data() + i, sizeof half);
        const float value = f32_of_f16(half);
        std::memcpy(bytes.data() + 2 * i, &value, sizeof value);
    }
    return bytes;
}

// Returns the number of elements of this shape; -1 if a size is negative or there are more than `most`.
int64_t numel_of(const std::vector<int64_t>& shape, int64_t most) {
    int64_t count = 1;
    for (const int64_t dim : shape) {
        if (dim < 0 || (dim > 0 && count > most / dim)) return -1;
        count *= dim;
    }
    return count;
}

struct Header {
    Json json;
    int64_t data = 0;  // file offset of the tensors' bytes
    int64_t size = 0;  // file size, bytes
};

Header read_header(const std::string& path) {
    expect_regular_file(path);
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw_data("{}: cannot be opened: {}", path, errno_text());
    const auto size = static_cast<int64_t>(file.tellg());
    int64_t length = 0;
    file.seekg(0);
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    if (!file || length < 0 || length > size - static_cast<int64_t>(sizeof length)) {
        throw_data("{}: a header of {} bytes does not fit a file of {} bytes", path,
                   static_cast<uint64_t>(length), size);
    }
    constexpr int64_t kMaxHeaderBytes = 100'000'000;  // limit of the safetensors library
    if (length > kMaxHeaderBytes)
        throw_data("{}: a header of {} bytes, at most {} are read", path, length, kMaxHeaderBytes);
    std::string text(static_cast<size_t>(length), ' ');
    file.read(text.data(), length);
    try {
        Json header = parse_json<Json>(file ? text : "", {.bytes = kMaxHeaderBytes, .keys = 1'000'000});
        if (header.is_object())
            return {std::move(header), static_cast<int64_t>(sizeof length) + length, size};
    } catch (const JsonError& error) {
        throw_data("{}: the header at byte 8 is not JSON: {}", path, error.what());
    }
    throw_data("{}: the header at byte 8 is not a JSON object", path);
}

std::vector<int64_t> whole_numbers(const Json& list) {
    std::vector<int64_t> numbers;
    for (const Json& number : list.get_ref<const Json::array_t&>()) numbers.push_back(whole_number(number));
    return numbers;
}

// Overlapping tensors would let a small file request any amount of memory.
void expect_no_overlap(const std::string& path, const std::vector<StoredTensor>& tensors) {
    std::vector<const TensorEntry*> sorted;
    for (const StoredTensor& tensor : tensors)
        if (tensor.entry.bytes > 0) sorted.push_back(&tensor.entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const TensorEntry* a, const TensorEntry* b) { return a->begin < b->begin; });
    for (size_t i = 1; i < sorted.size(); ++i) {
        const TensorEntry &before = *sorted[i - 1], &after = *sorted[i];
        if (after.begin < before.begin + before.bytes)
            throw_data("{}: tensors {} and {} overlap at byte {}", path, shown_text(before.name),
                       shown_text(after.name), after.begin);
    }
}

std::vector<StoredTensor> stored_tensors(const std::string& path) {
    const auto [header, data, size] = read_header(path);
    std::vector<StoredTensor> tensors;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        const std::string where = fmt::format("{}: tensor {}", path, shown_text(name));
        StoredTensor stored;
        TensorEntry& tensor = stored.entry;
        tensor.name = name;
        std::vector<int64_t> offsets;
        try {
            set_type(stored, entry.at("dtype").get<std::string>(), where);
            tensor.shape = whole_numbers(entry.at("shape"));
            offsets = whole_numbers(entry.at("data_offsets"));
        } catch (const Json::exception& error) {
            throw_data("{}: {}", where, error.what());
        } catch (const JsonError& error) {
            throw_data("{}: {}", where, error.what());
        }
        const int64_t element = stored.is_f16 ? 2 : size_of(tensor.dtype);
        const int64_t bytes = numel_of(tensor.shape, size / element) * element;
        const bool fits =
            offsets.size() == 2 && 0 <= offsets[0] && offsets[0] <= offsets[1] && offsets[1] <= size - data;
        if (!fits || offsets[1] - offsets[0] != bytes) {
            throw_data("{}: data_offsets {} do not hold {} bytes in a file with {} bytes of data", where,
                       shown(entry.at("data_offsets")), bytes, size - data);
        }
        tensor.begin = data + offsets[0];
        tensor.bytes = bytes;
        tensors.push_back(std::move(stored));
    }
    expect_no_overlap(path, tensors);
    return tensors;
}

}  // namespace

std::string safetensors_header(std::vector<TensorEntry>& tensors) {
    Json header = {{"__metadata__", {{"format", "pt"}}}};  // required by the transformers library
    auto& entries = header.get_ref<Json::object_t&>();
    int64_t offset = 0;
    for (TensorEntry& tensor : tensors) {
        tensor.begin = offset;
        const int64_t element = size_of(tensor.dtype);
        tensor.bytes = numel_of(tensor.shape, std::numeric_limits<int64_t>::max() / element) * element;
        offset += tensor.bytes;
        // Appends without a search for the name, which would be quadratic in the number of tensors.
        entries.emplace_back(tensor.name, Json{{"dtype", type_name(tensor.dtype)},
                                               {"shape", tensor.shape},
                                               {"data_offsets", {tensor.begin, offset}}});
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // aligns the tensors
    const uint64_t length = text.size();
    text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
    for (TensorEntry& tensor : tensors) tensor.begin += static_cast<int64_t>(text.size());
    return text;
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
    std::vector<TensorEntry> entries;
    for (const NamedTensor& tensor : tensors) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    OutputFile file(path);
    file.write(safetensors_header(entries));
    for (const NamedTensor& tensor : tensors) file.write({tensor.bytes.data(), tensor.bytes.size()});
    file.finish();
}

std::vector<TensorEntry> read_safetensors_entries(const std::string& path) {
    std::vector<TensorEntry> tensors;
    for (StoredTensor& stored : stored_tensors(path)) {
        if (stored.is_f16)
            throw_data("{}: tensor {}: element type F16 is not one of F32, BF16, I32", path,
                       shown_text(stored.entry.name));
        tensors.push_back(std::move(stored.entry));
    }
    return tensors;
}

std::vector<NamedTensor> read_safetensors(const std::string& path) {
    std::vector<NamedTensor> tensors;
    const std::vector<StoredTensor> stored = stored_tensors(path);
    std::ifstream file(path, std::ios::binary);
    for (const auto& [entry, is_f16] : stored) {
        NamedTensor tensor{entry.name, entry.dtype, entry.shape, {}};
        tensor.bytes.resize(static_cast<size_t>(entry.bytes));
        file.seekg(entry.begin);
        file.read(tensor.bytes.data(), entry.bytes);
        if (!file)
            throw_data("{}: tensor {}: reading {} bytes at {} failed", path, entry.name, entry.bytes,
                       entry.begin);
        if (is_f16) tensor.bytes = widened(tensor.bytes);
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

}  // namespace speedrun
