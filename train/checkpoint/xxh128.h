// XXH128 (128-bit XXH3, by libxxhash) of data that arrives in pieces. Detects accidental damage at many gigabytes per
// second. SHA-256 takes a core one second per gigabyte, or three without SHA instructions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace speedrun {

class Xxh128 {
  public:
    Xxh128();
    ~Xxh128();
    Xxh128(const Xxh128&) = delete;
    Xxh128& operator=(const Xxh128&) = delete;

    void update(const void* data, size_t bytes);
    // Returns the XXH128 of all data so far as 32 hexadecimal digits, in the format of `xxhsum -H2`.
    std::string hex() const;

  private:
    struct State;
    const std::unique_ptr<State> state_;
};

// Returns the XXH128 of a file. Throws a data error with file and reason if it cannot be read.
std::string xxh128_file(const std::string& path);

}  // namespace speedrun
