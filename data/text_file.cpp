#include "data/text_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "data/errno_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

const char* kind_of(mode_t mode) {
    return S_ISDIR(mode) ? "folder" : S_ISFIFO(mode) ? "named pipe" : "device or socket";
}

class OpenFile {
  public:
    // Without O_NONBLOCK, open() of a named pipe would wait for a writer.
    explicit OpenFile(const std::string& path)
        : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
        if (file_ < 0) throw_data("{}: cannot be read: {}", path_, errno_text());
    }
    ~OpenFile() { ::close(file_); }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    void expect_readable(size_t most) const {
        struct stat status {};
        if (::fstat(file_, &status) != 0) throw_data("{}: cannot be read: {}", path_, errno_text());
        if (S_ISREG(status.st_mode)) return expect_at_most(most, static_cast<size_t>(status.st_size));
        struct statfs system {};
        const bool anonymous =
            S_ISFIFO(status.st_mode) && ::fstatfs(file_, &system) == 0 && system.f_type == PIPEFS_MAGIC;
        if (!anonymous)
            throw_data("{}: cannot be read: a {}, expected a regular file", path_, kind_of(status.st_mode));
        const int flags = ::fcntl(file_, F_GETFL);
        if (flags < 0 || ::fcntl(file_, F_SETFL, flags & ~O_NONBLOCK) != 0)
            throw_data("{}: cannot be read: {}", path_, errno_text());
    }
    std::string read(size_t most) const {
        std::string text;
        std::string piece(size_t{1} << 16, '\0');
        for (;;) {
            const ssize_t got = ::read(file_, piece.data(), piece.size());
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) throw_data("{}: cannot be read: {}", path_, errno_text());
            if (got == 0) return text;
            text.append(piece, 0, static_cast<size_t>(got));
            expect_at_most(most, text.size());
            if (static_cast<size_t>(got) == piece.size())
                piece.resize(std::min(2 * piece.size(), size_t{1} << 22));
        }
    }

  private:
    void expect_at_most(size_t most, size_t bytes) const {
        if (bytes > most) throw_data("{}: has {} bytes or more, at most {} are read", path_, bytes, most);
    }

    const std::string& path_;
    const int file_;
};

}  // namespace

void expect_regular_file(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
        throw_data("{}: cannot be read: a {}, expected a regular file", path, kind_of(status.st_mode));
}

std::string read_text_file(const std::string& path, size_t most) {
    const OpenFile file(path);
    file.expect_readable(most);
    return file.read(most);
}

bool is_utf8(std::string_view text) {
    try {
        (void)nlohmann::json(std::string(text)).dump();
        return true;
    } catch (const nlohmann::json::type_error&) {
        return false;
    }
}

std::string shown_text(std::string_view text) {
    constexpr size_t kLongest = 100;
    const std::string_view part = text.substr(0, std::min(text.size(), kLongest));
    const std::string quoted =
        nlohmann::json(std::string(part)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2) + (part.size() < text.size() ? "..." : "");
}

}  // namespace speedrun
