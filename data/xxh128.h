// XXH128 (XXH3 of 128 bits, by libxxhash) of a stream of bytes. It detects accidental damage at many gigabytes per second.
// SHA-256 takes a core one second per gigabyte, or three without SHA instructions.
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
    // Returns the hash of all bytes until now as 32 hexadecimal digits, the format of `xxhsum -H2`.
    std::string hex() const;

  private:
    struct State;
    const std::unique_ptr<State> state_;
};

// Throws a data error with file and reason for an unreadable file.
std::string xxh128_file(const std::string& path);

}  // namespace speedrun
