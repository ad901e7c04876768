// Which algorithm a library was found to run fastest, by product: a small text file per GPU and library
// version, which all runs on a machine share.
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
    // ignored, and replaced when something is agreed on. "" keeps nothing.
    AlgorithmCache(std::string file, std::string owner);

    std::optional<AlgorithmWords> find(const std::string& key) const;

    // What is to be used for `key` by a run that has timed `words` to be the fastest, because find() had nothing
    // or what the library refuses: what another run has written meanwhile, else `words`, which are written. So
    // ranks and runs that time a product at the same time compute with the same algorithm, and with the same
    // bits again later. A file that cannot be written is none.
    AlgorithmWords agree(const std::string& key, const AlgorithmWords& words);

  private:
    void read();
    bool write() const;

    const std::string file_, owner_;
    std::map<std::string, AlgorithmWords> entries_;
};

}  // namespace speedrun
