// A file that grows by whole lines. A line that cannot be written whole is removed again: each line stays readable after a disk
// was full for a while.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speedrun {

class LineFile {
  public:
    enum class Begin : uint8_t { empty, at_the_end };

    // Opens or creates the file; not through a symbolic link, which may leave the run's folder. is_open() says whether it could.
    LineFile(const std::string& path, Begin begin);
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    bool is_open() const { return file_ >= 0; }
    // Appends lines, each with its newline. Returns false if they could not be written; the file then ends as it did before.
    bool write(std::string_view lines);
    int64_t num_dropped() const { return num_dropped_; }  // calls of write() that failed
    const std::string& reason() const {
        return reason_;
    }  // of the last failure, of open() too: "No space left on device"

  private:
    bool append(std::string_view text);

    int file_ = -1;
    bool torn_ = false;  // the last line has no newline
    int64_t num_dropped_ = 0;
    std::string reason_;
};

}  // namespace speedrun
