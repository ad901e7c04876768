// Common parts of the fuzz targets: an input as a file in memory, and the check of allowed errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace speedrun::fuzz {

// A file in memory with the lifetime of the object.
class MemoryFile {
  public:
    explicit MemoryFile(std::string_view content);
    ~MemoryFile();
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    const std::string& path() const { return path_; }

  private:
    int file_;
    std::string path_;
};

// Runs a parser. It may throw an Error with exit code 2 or 3 and a message. All other exceptions, also Errors with exit code 1,
// end the process as a finding.
void expect_clean(const std::function<void()>& parse);

// The parser of a target, which defines it. Called under expect_clean().
void parse(std::string_view input);

}  // namespace speedrun::fuzz
