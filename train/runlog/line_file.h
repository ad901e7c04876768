// A file that grows by whole lines. A line that cannot be written completely is removed again: each line stays readable after a
// temporarily full disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speedrun {

class LineFile {
  public:
    enum class Begin : uint8_t { empty, at_the_end };

    // Opens or creates the file. Does not follow a symbolic link, which may lead out of the run's folder. is_open() returns the
    // result.
    LineFile(const std::string& path, Begin begin);
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    bool is_open() const { return file_ >= 0; }
    // Appends lines, each with its newline. Returns false if they could not be written; the file is then unchanged.
    bool write(std::string_view lines);
    int64_t num_dropped() const { return num_dropped_; }  // failed calls of write()
    const std::string& reason() const {
        return reason_;
    }  // text of the last failure, including open(): "No space left on device"

  private:
    bool append(std::string_view text);

    int file_ = -1;
    bool torn_ = false;  // the last line has no newline
    int64_t num_dropped_ = 0;
    std::string reason_;
};

}  // namespace speedrun
