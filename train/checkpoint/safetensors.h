// safetensors files: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device/dtype.h"

namespace speedrun {

struct NamedTensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    std::vector<char> bytes;
};

// Location of a tensor in a file.
struct TensorEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    int64_t begin = 0, bytes = 0;  // from the file's first byte
};

// Returns the length and header for these tensors, stored consecutively. Sets `begin` and `bytes`.
std::string safetensors_header(std::vector<TensorEntry>& tensors);
// Reads the entries of a file in the header's order, without the tensors' bytes. Throws as read_safetensors, and for F16.
std::vector<TensorEntry> read_safetensors_entries(const std::string& path);

// Writes through OutputFile (durable_file.h).
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

// Reads and checks a whole file; F16 becomes f32. Throws a data error that names file, tensor and offsets if it is damaged.
std::vector<NamedTensor> read_safetensors(const std::string& path);

}  // namespace speedrun
