#include "train/runlog/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "data/errno_text.h"

namespace speedrun {

LineFile::LineFile(const std::string& path, Begin begin) {
    constexpr mode_t kMode = 0666;  // before the user's umask
    const int how = begin == Begin::empty ? O_TRUNC : 0;
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | how, kMode);
    if (file_ < 0) {
        reason_ = errno == ELOOP ? "is a symbolic link" : errno_text();
        return;
    }
    char last = '\n';
    const off_t size = ::lseek(file_, 0, SEEK_END);
    torn_ = size > 0 && ::pread(file_, &last, 1, size - 1) == 1 && last != '\n';
}

LineFile::~LineFile() {
    if (file_ >= 0) ::close(file_);
}

bool LineFile::append(std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(file_, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            reason_ = errno_text();
            return false;
        }
        text.remove_prefix(static_cast<size_t>(written));
    }
    return true;
}

bool LineFile::write(std::string_view lines) {
    struct stat before {};
    const bool known = file_ >= 0 && ::fstat(file_, &before) == 0, was_torn = torn_;
    if (known && (!torn_ || append("\n"))) {
        torn_ = false;
        if (append(lines)) return true;
    }
    ++num_dropped_;
    if (known) {
        struct stat now {};
        const bool as_before = ::ftruncate(file_, before.st_size) == 0;
        torn_ = was_torn || (!as_before && ::fstat(file_, &now) == 0 && now.st_size > before.st_size);
    }
    return false;
}

}  // namespace speedrun
