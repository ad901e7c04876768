#include "data/shard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "data/durable_file.h"
#include "data/errno_text.h"
#include "kernels/device/error.h"

namespace speedrun {

static_assert(std::endian::native == std::endian::little, "shards are read, not converted");

namespace {

// Closes in the destructor; close() is called explicitly if its result matters.
class FileDescriptor {
  public:
    FileDescriptor(const std::string& path, int flags, mode_t mode = 0)
        : value_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
    ~FileDescriptor() {
        if (value_ >= 0) ::close(value_);
    }
    FileDescriptor(const FileDescriptor&) = delete;
    FileDescriptor& operator=(const FileDescriptor&) = delete;

    int get() const { return value_; }
    int close() { return ::close(release()); }
    int release() { return std::exchange(value_, -1); }

  private:
    int value_;
};

constexpr int kReadFlags = O_RDONLY | O_NONBLOCK;  // does not wait for the writer of a FIFO

std::atomic<int64_t> kept_open{0};  // descriptors held by shards

// Half of the limit, because connections, logs and libraries need descriptors too.
int64_t max_kept_open() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 20) / 2);
}

}  // namespace

Shard::Shard(const std::string& path) : path_(path) {
    FileDescriptor file(path, kReadFlags);
    if (file.get() < 0) throw_data("{}: cannot open shard: {}", path, errno_text());
    version_ = version_of(file.get(), path);
    const int64_t bytes = version_.bytes;
    if (bytes < kShardHeaderBytes) {
        throw_data("{}: truncated shard: the header needs {} bytes from offset 0, the file has {}", path,
                   kShardHeaderBytes, bytes);
    }

    std::array<int32_t, 3> header{};
    const ssize_t got = ::pread(file.get(), header.data(), sizeof(header), 0);
    if (got != static_cast<ssize_t>(sizeof(header))) {
        throw_data("{}: reading {} header bytes at offset 0 gave {}: {}", path, sizeof(header), got,
                   got < 0 ? errno_text() : "file changed while reading");
    }
    const auto [magic, version, count] = header;
    if (magic != kShardMagic) {
        throw_data("{}: not a token shard: magic at offset 0 is {}, expected {}", path, magic, kShardMagic);
    }
    if (version != kShardVersion) {
        throw_data("{}: shard version at offset 4 is {}, expected {}", path, version, kShardVersion);
    }
    if (count < 0) throw_data("{}: token count at offset 8 is {}, expected 0 or more", path, count);
    const int64_t expected = kShardHeaderBytes + 2 * static_cast<int64_t>(count);
    if (bytes != expected) {
        throw_data("{}: file has {} bytes, expected {} for the token count {} at offset 8 ({})", path, bytes,
                   expected, count, bytes < expected ? "truncated" : "trailing bytes");
    }
    size_ = count;
    if (kept_open.fetch_add(1) < max_kept_open()) {
        file_ = file.release();
    } else {
        --kept_open;
    }
}

Shard::~Shard() {
    close();
}

Shard::Shard(Shard&& other) noexcept
    : path_(std::move(other.path_)),
      size_(std::exchange(other.size_, 0)),
      version_(other.version_),
      file_(std::exchange(other.file_, -1)) {}

Shard& Shard::operator=(Shard&& other) noexcept {
    if (this != &other) {
        close();
        path_ = std::move(other.path_);
        size_ = std::exchange(other.size_, 0);
        version_ = other.version_;
        file_ = std::exchange(other.file_, -1);
    }
    return *this;
}

void Shard::close() noexcept {
    if (file_ < 0) return;
    ::close(std::exchange(file_, -1));
    --kept_open;
}

Shard::Version Shard::version_of(int file, const std::string& path) {
    struct stat status {};
    if (::fstat(file, &status) != 0) throw_data("{}: fstat failed: {}", path, errno_text());
    if (!S_ISREG(status.st_mode)) throw_data("{}: not a regular file", path);
    return {.id = {.device = status.st_dev, .inode = status.st_ino},
            .bytes = status.st_size,
            .modified_s = status.st_mtim.tv_sec,
            .modified_ns = status.st_mtim.tv_nsec};
}

void Shard::expect_unchanged(int file) const {
    const Version now = version_of(file, path_);
    if (now == version_) return;
    if (now.id != version_.id)
        throw_data("{}: the shard was replaced by another file while it was in use", path_);
    if (now.bytes != version_.bytes)
        throw_data("{}: the shard changed while it was in use: {} bytes when it was opened, now {}", path_,
                   version_.bytes, now.bytes);
    throw_data("{}: the shard was written to while it was in use (its modification time changed)", path_);
}

void Shard::read_bytes(int64_t first, std::span<unsigned char> out) const {
    const auto bytes = static_cast<int64_t>(out.size());
    if (first < 0 || first > this->bytes() - bytes)
        throw_internal("{}: {} bytes at {}, the shard has {}", path_, bytes, first, this->bytes());
    std::optional<FileDescriptor> opened;
    if (file_ < 0) {
        opened.emplace(path_, kReadFlags);
        if (opened->get() < 0) throw_data("{}: cannot open shard: {}", path_, errno_text());
    }
    const int file = opened ? opened->get() : file_;
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = ::pread(file, out.data() + done, static_cast<size_t>(bytes - done), first + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            throw_data("{}: reading {} bytes at offset {} failed: {}", path_, bytes, first, errno_text());
        if (got == 0) break;  // the file has become shorter
        done += got;
    }
    expect_unchanged(file);  // checks after the read, so that the bytes read are covered
    if (done < bytes) throw_data("{}: reading {} bytes at offset {} returned {}", path_, bytes, first, done);
}

void Shard::read(int64_t first, std::span<uint16_t> out) const {
    const auto count = static_cast<int64_t>(out.size());
    if (first < 0 || first > size_ - count)
        throw_internal("{}: window of {} tokens at {}, the shard has {}", path_, count, first, size_);
    read_bytes(kShardHeaderBytes + 2 * first,
               {reinterpret_cast<unsigned char*>(out.data()), out.size_bytes()});
}

std::vector<uint16_t> Shard::read_all() const {
    std::vector<uint16_t> tokens(static_cast<size_t>(size_));
    read(0, tokens);
    return tokens;
}

void Shard::will_need() const {
    if (file_ >= 0) (void)::posix_fadvise(file_, 0, 0, POSIX_FADV_WILLNEED);
}

void write_shard(const std::string& path, std::span<const uint16_t> tokens) {
    if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
        throw_data("{}: {} tokens do not fit in one shard, at most {}", path, tokens.size(),
                   std::numeric_limits<int32_t>::max());
    }
    const std::array<int32_t, 256> header = {kShardMagic, kShardVersion, static_cast<int32_t>(tokens.size())};
    OutputFile file(path, OutputFile::Path::own);
    file.write({reinterpret_cast<const char*>(header.data()), sizeof(header)});
    file.write({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
    file.finish();
}

}  // namespace speedrun
