// What the fuzz targets share: an input as a file without a disk, and the one kind of failure that is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace speedrun::fuzz {

// A file in memory, for as long as the object.
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

// Runs a parser. An Error with exit code 2 or 3 and a message is its right to throw; everything else, and an
// exit code 1 is that too, ends the process as a finding.
void expect_clean(const std::function<void()>& parse);

}  // namespace speedrun::fuzz
