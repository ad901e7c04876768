#include "train/checkpoint/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "data/dataset.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/checkpoint/problem_list.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/state_pieces.h"

namespace speedrun {

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ","));
}

// Hashes the next `bytes` bytes of the file. Returns the XXH128 of everything hashed so far.
std::string hash_on(Xxh128& hash, std::ifstream& file, int64_t bytes) {
    std::vector<char> buffer(1 << 20);
    while (bytes > 0) {
        const int64_t part = std::min(bytes, static_cast<int64_t>(buffer.size()));
        if (!file.read(buffer.data(), part)) return "unreadable";
        hash.update(buffer.data(), static_cast<size_t>(part));
        bytes -= part;
    }
    return hash.hex();
}

}  // namespace

CheckpointReader::CheckpointReader(std::string folder)
    : folder_(std::move(folder)), info_(read_checkpoint_info(folder_)) {}

void CheckpointReader::verify_file(const CheckpointFile& file) const {
    const std::string path = path_of(file);
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error)
        throw_data("{}: {}; the checkpoint has {} such files", path, error.message(), info_.files.size());
    if (bytes != file.bytes) throw_data("{}: has {} bytes, expected {}", path, bytes, file.bytes);
    const std::string sums_path = folder_ + "/" + sums_file_name(file.name), sums = xxh128_file(sums_path);
    if (sums != file.sums_xxh128)
        throw_data("{}: XXH128 is {}, expected {}", sums_path, sums, file.sums_xxh128);
    const std::string sum = xxh128_file(path);
    if (sum != file.xxh128)
        throw_data("{}: XXH128 is {}, expected {}; {}", path, sum, file.xxh128, damaged_tensor(file));
}

std::string CheckpointReader::damaged_tensor(const CheckpointFile& file) const {
    const std::string path = path_of(file);
    std::vector<TensorEntry> entries;
    try {
        entries = read_safetensors_entries(path);
    } catch (const Error& error) {
        return error.what();
    }
    std::ifstream stream(path, std::ios::binary);
    const std::map<std::string, std::string> sums = read_sums(folder_ + "/" + sums_file_name(file.name));
    std::sort(entries.begin(), entries.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.begin < b.begin; });
    int64_t hashed = entries.empty() ? file.bytes : entries.front().begin;
    Xxh128 hash;
    const auto header = sums.find(kHeaderSum);
    if (header == sums.end() || hash_on(hash, stream, hashed) != header->second)
        return fmt::format("damaged is the header, bytes 0 to {}", hashed);
    for (const TensorEntry& entry : entries) {
        const auto expected = sums.find(entry.name);
        if (expected == sums.end()) return fmt::format("tensor {} does not belong there", entry.name);
        const int64_t end = entry.begin + entry.bytes;
        const std::string actual = hash_on(hash, stream, end - std::exchange(hashed, end));
        if (actual != expected->second) {
            return fmt::format(
                "damaged is tensor {}, bytes {} to {}: XXH128 of all before {} is {}, expected {}",
                entry.name, entry.begin, end, end, actual, expected->second);
        }
    }
    return "no tensor is damaged";
}

std::string CheckpointReader::header(size_t file) const {
    nlohmann::json header = {{"file", file}, {"tensors", nlohmann::json::array()}};
    for (const TensorEntry& entry : read_safetensors_entries(path_of(info_.files.at(file))))
        header["tensors"].push_back({entry.name, name_of(entry.dtype), entry.begin, entry.bytes});
    return header.dump();
}

void CheckpointReader::index(const std::vector<std::string>& headers) {
    stored_.clear();
    std::map<std::string, const CheckpointTensor*> tensors;
    for (const CheckpointTensor& tensor : info_.tensors) tensors[tensor.name] = &tensor;
    for (const std::string& text : headers) {
        const nlohmann::json header = parse_json<nlohmann::json>(text, {.bytes = kMaxFileBytes});
        const auto f = header.at("file").get<size_t>();
        const std::string path = path_of(info_.files.at(f));
        for (const nlohmann::json& entry : header.at("tensors")) {
            const auto [name, type, begin, bytes] =
                entry.get<std::tuple<std::string, std::string, int64_t, int64_t>>();
            const PieceName piece = parse_piece_name(name);
            const auto found = tensors.find(piece.tensor);
            if (found == tensors.end()) throw_data("{}: unknown tensor {}", path, name);
            const std::vector<int64_t>& shape = found->second->shape;
            const std::optional<Box> box = box_of(piece, shape);
            if (!box)
                throw_data("{}: {} holds numbers that tensor {} {} lacks", path, name, piece.tensor,
                           text_of(shape));
            const DType dtype = found->second->dtype;
            if (type != name_of(dtype) || bytes != box->count() * size_of(dtype)) {
                throw_data("{}: {} has {} bytes of {}; expected {} numbers ({}) of tensor {} {}", path, name,
                           bytes, type, box->count(), name_of(dtype), piece.tensor, text_of(shape));
            }
            stored_[piece.tensor].push_back({*box, f, begin, dtype});
        }
    }
    for (const CheckpointTensor& tensor : info_.tensors) check_covered(tensor);
}

void CheckpointReader::index() {
    std::vector<std::string> headers;
    for (size_t file = 0; file < info_.files.size(); ++file) headers.push_back(header(file));
    index(headers);
}

void CheckpointReader::check_covered(const CheckpointTensor& tensor) const {
    std::vector<Box> boxes;
    if (const auto found = stored_.find(tensor.name); found != stored_.end())
        for (const Stored& piece : found->second) boxes.push_back(piece.box);
    const auto [reached, twice] = coverage_of(boxes);
    if (twice)
        throw_data("{}: tensor {} {}: the files hold number {} more than once", folder_, tensor.name,
                   text_of(tensor.shape), reached);
    if (boxes.empty() || reached != tensor.numel())
        throw_data("{}: missing tensor {} {}: the files hold {} of {} numbers in a row", folder_, tensor.name,
                   text_of(tensor.shape), reached, tensor.numel());
}

void CheckpointReader::expect_tensors(const std::vector<CheckpointTensor>& expected) const {
    std::map<std::string, const CheckpointTensor*> actual;
    for (const CheckpointTensor& tensor : info_.tensors) actual[tensor.name] = &tensor;
    ProblemList problems;
    for (const CheckpointTensor& tensor : expected) {
        const auto found = actual.find(tensor.name);
        if (found == actual.end()) {
            problems.add("missing tensor " + tensor.name);
            continue;
        }
        const auto& [name, shape, dtype] = *found->second;
        if (shape != tensor.shape)
            problems.add(fmt::format("{} is {}, expected {}", name, text_of(shape), text_of(tensor.shape)));
        if (dtype != tensor.dtype)
            problems.add(fmt::format("{} is {}, expected {}", name, name_of(dtype), name_of(tensor.dtype)));
        actual.erase(found);
    }
    for (const auto& [name, tensor] : actual) problems.add("unknown tensor " + shown_text(name));
    if (problems.any()) throw_data("{} does not fit the config's model: {}", folder_, problems.text());
}

void CheckpointReader::read(const std::string& tensor, const Box& box, void* values) const {
    const auto found = stored_.find(tensor);
    if (found == stored_.end()) throw_internal("{}: {} was not indexed", folder_, tensor);
    for (const Stored& piece : found->second) {
        const std::vector<Overlap> overlaps = overlaps_of(box, piece.box);
        if (overlaps.empty()) continue;
        const std::string path = path_of(info_.files[piece.file]);
        std::ifstream file(path, std::ios::binary);
        for (const Overlap& overlap : overlaps) {
            const int64_t size = size_of(piece.dtype);
            const int64_t at = piece.offset + overlap.in_second * size, bytes = overlap.count * size;
            file.seekg(at);
            file.read(static_cast<char*>(values) + overlap.in_first * size, bytes);
            if (!file) throw_data("{}: {}: reading {} bytes at {} failed", path, tensor, bytes, at);
        }
    }
}

}  // namespace speedrun
