// A file named by the user, read from begin to end.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace speedrun {

// A regular file or an anonymous pipe (`<(command)` of a shell). Other kinds of files are a data error with path and
// reason: /dev/zero has no end, and a named pipe without a writer would block.
class OpenFile {
  public:
    explicit OpenFile(std::string path);
    ~OpenFile();
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    const std::string& path() const { return path_; }
    size_t size() const { return size_; }  // bytes; 0 for a pipe
    // Reads at most out.size() bytes, and returns their number; 0 at the end.
    size_t read(std::span<char> out) const;

  private:
    const std::string path_;
    const int file_;
    size_t size_ = 0;
};

// Throws a data error for a path that exists and is not a regular file. Call before a reader that would wait for its
// end.
void expect_regular_file(const std::string& path);

}  // namespace speedrun
