// Which algorithm a library was found to run fastest, by product: a small text file per GPU and library
// version.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace speedrun {

// Opaque words, as the library gives them out; good for the same version of it on the same GPU.
using AlgorithmWords = std::array<uint64_t, 8>;

class AlgorithmCache {
  public:
    // Reads the file if it is there; `owner` (GPU and version) must be its first line, otherwise it is
    // ignored and replaced at the next save. "" keeps nothing.
    AlgorithmCache(std::string file, std::string owner);

    std::optional<AlgorithmWords> find(const std::string& key) const;
    void store(const std::string& key, const AlgorithmWords& words);
    // Writes the file if anything is new: to a temporary file, then renamed, so that a reader sees a whole
    // one. False if it could not be written.
    bool save();

  private:
    const std::string file_, owner_;
    std::map<std::string, AlgorithmWords> entries_;
    bool changed_ = false;
};

}  // namespace speedrun
