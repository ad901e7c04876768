// What a record was made on, as far as times depend on it: only records of one hardware class are compared.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

// A run on GPUs has `gpus` and `gpu`, another `cores` and `level`.
struct HardwareClass {
    int64_t gpus = 0;  // that its ranks used, on all hosts
    std::string gpu;   // model of the first
    int64_t hosts = 1, cores = 0;
    std::string level;  // of instructions: "avx512_bf16"; "" where the record does not say

    bool operator==(const HardwareClass&) const = default;
    std::string text() const;  // "8 x NVIDIA H100 80GB HBM3", "2 cores, avx2", "2 hosts of 4 cores, avx2"
};

// Members of an environment.json that make a machine, as a record keeps them: both are JSON objects. Throws a JSON error where
// `environment` is none.
std::string hardware_of(const std::string& environment);

// Throws a data error that names the key where `hardware` has one of another type.
HardwareClass hardware_class_of(const std::string& hardware);

}  // namespace speedrun
