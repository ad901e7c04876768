#include "data/open_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "data/errno_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

const char* kind_of(mode_t mode) {
    return S_ISDIR(mode) ? "folder" : S_ISFIFO(mode) ? "named pipe" : "device or socket";
}

}  // namespace

// Without O_NONBLOCK, open() of a named pipe would wait for a writer.
OpenFile::OpenFile(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
    if (file_ < 0) throw_data("{}: cannot be read: {}", path_, errno_text());
    try {
        struct stat status {};
        if (::fstat(file_, &status) != 0) throw_data("{}: cannot be read: {}", path_, errno_text());
        if (S_ISREG(status.st_mode)) {
            size_ = static_cast<size_t>(status.st_size);
            return;
        }
        struct statfs system {};
        const bool anonymous =
            S_ISFIFO(status.st_mode) && ::fstatfs(file_, &system) == 0 && system.f_type == PIPEFS_MAGIC;
        if (!anonymous)
            throw_data("{}: cannot be read: a {}, expected a regular file", path_, kind_of(status.st_mode));
        const int flags = ::fcntl(file_, F_GETFL);
        if (flags < 0 || ::fcntl(file_, F_SETFL, flags & ~O_NONBLOCK) != 0)
            throw_data("{}: cannot be read: {}", path_, errno_text());
    } catch (...) {
        ::close(file_);
        throw;
    }
}

OpenFile::~OpenFile() {
    ::close(file_);
}

size_t OpenFile::read(std::span<char> out) const {
    for (;;) {
        const ssize_t got = ::read(file_, out.data(), out.size());
        if (got >= 0) return static_cast<size_t>(got);
        if (errno != EINTR) throw_data("{}: cannot be read: {}", path_, errno_text());
    }
}

void expect_regular_file(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
        throw_data("{}: cannot be read: a {}, expected a regular file", path, kind_of(status.st_mode));
}

}  // namespace speedrun
