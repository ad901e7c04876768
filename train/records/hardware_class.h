// Hardware of a record, as far as it affects times: only records of one hardware class are compared.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

// GPU runs have `gpus` and `gpu`, CPU runs `cores` and `level`.
struct HardwareClass {
    int64_t gpus = 0;  // used by the ranks, on all hosts
    std::string gpu;   // model of the first GPU
    int64_t hosts = 1, cores = 0;
    std::string level;  // instruction set level, e.g. "avx512_bf16"; "" if unknown

    bool operator==(const HardwareClass&) const = default;
    std::string text() const;  // "8 x NVIDIA H100 80GB HBM3", "2 cores, avx2", "2 hosts of 4 cores, avx2"
};

// Returns the members of an environment.json that describe a machine, as stored in a record: both are JSON objects. Throws a
// JSON error if `environment` is not an object.
std::string hardware_of(const std::string& environment);

// Throws a data error that names the key if a member of `hardware` has another type.
HardwareClass hardware_class_of(const std::string& hardware);

}  // namespace speedrun
