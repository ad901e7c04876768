// Fastest algorithm of a library per matmul: a small text file per GPU and library version, shared by all
// runs on a machine.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace speedrun {

// Opaque words of the library; valid for the same library version and GPU.
using AlgorithmWords = std::array<uint64_t, 8>;

class AlgorithmCache {
  public:
    // Reads the file if it exists. Its first line must be `owner` (GPU and version); otherwise the file is
    // ignored, and replaced by agree(). "" stores nothing.
    AlgorithmCache(std::string file, std::string owner);

    std::optional<AlgorithmWords> find(const std::string& key) const;

    // Called by a run that has timed `words` to be the fastest, because find() had no entry or the library
    // refused it. Returns the entry that another run has written meanwhile; otherwise writes and returns
    // `words`. So ranks and runs that time a matmul concurrently use the same algorithm, and later runs
    // compute the same bits. A file that cannot be written is ignored.
    AlgorithmWords agree(const std::string& key, const AlgorithmWords& words);

  private:
    void read();
    bool write() const;

    const std::string file_, owner_;
    std::map<std::string, AlgorithmWords> entries_;
};

}  // namespace speedrun
