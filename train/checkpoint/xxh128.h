// XXH128 (XXH3 of 128 bits, by libxxhash) of data that comes in pieces: to find damage that nobody intended, at many gigabytes a
// second. SHA-256 takes a core a second for one, and where processors have no instructions for it three.
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
    // 32 hexadecimal digits of all that came so far, as `xxhsum -H2` prints them.
    std::string hex() const;

  private:
    struct State;
    const std::unique_ptr<State> state_;
};

// Throws a data error with file and reason if it cannot be read.
std::string xxh128_file(const std::string& path);

}  // namespace speedrun
