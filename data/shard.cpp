#include "data/shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "data/errno_text.h"
#include "kernels/device/error.h"

namespace speedrun {

static_assert(std::endian::native == std::endian::little, "shards are mapped, not converted");

namespace {

// Closes on every path out; close() is called explicitly where its result matters.
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
    int close() { return ::close(std::exchange(value_, -1)); }

  private:
    int value_;
};

void write_all(int file, const std::string& path, const void* data, size_t bytes) {
    const char* cursor = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = ::write(file, cursor, bytes);
        if (written < 0) {
            if (errno == EINTR) continue;
            throw_data("{}: write of {} bytes failed: {}", path, bytes, errno_text());
        }
        cursor += written;
        bytes -= static_cast<size_t>(written);
    }
}

// A rename is durable only once the directory that holds the name is synced.
void sync_directory(const std::string& path) {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string directory = parent.empty() ? "." : parent.string();
    FileDescriptor file(directory, O_RDONLY | O_DIRECTORY);
    if (file.get() < 0) throw_data("{}: cannot open the folder to sync it: {}", directory, errno_text());
    if (::fsync(file.get()) != 0) throw_data("{}: fsync of the folder failed: {}", directory, errno_text());
}

void write_and_rename(const std::string& temporary, const std::string& path,
                      std::span<const uint16_t> tokens) {
    FileDescriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file.get() < 0) throw_data("{}: cannot create: {}", temporary, errno_text());
    const std::array<int32_t, 256> header = {kShardMagic, kShardVersion, static_cast<int32_t>(tokens.size())};
    write_all(file.get(), temporary, header.data(), sizeof(header));
    write_all(file.get(), temporary, tokens.data(), tokens.size_bytes());
    if (::fsync(file.get()) != 0) throw_data("{}: fsync failed: {}", temporary, errno_text());
    if (file.close() != 0) throw_data("{}: close failed: {}", temporary, errno_text());
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
        throw_data("{}: rename to {} failed: {}", temporary, path, errno_text());
    }
}

}  // namespace

Shard::Shard(const std::string& path) : path_(path) {
    const FileDescriptor file(path, O_RDONLY | O_NONBLOCK);  // a named pipe would wait for its writer
    if (file.get() < 0) throw_data("{}: cannot open shard: {}", path, errno_text());
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) throw_data("{}: fstat failed: {}", path, errno_text());
    if (!S_ISREG(status.st_mode)) throw_data("{}: not a regular file", path);
    const int64_t bytes = status.st_size;
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

    void* mapping = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapping == MAP_FAILED) throw_data("{}: mmap of {} bytes failed: {}", path, bytes, errno_text());
    mapping_ = mapping;
    mapped_bytes_ = static_cast<size_t>(bytes);
    // Windows are read front to back wherever they start, so read-ahead should go forward from a fault.
    // Advice only: a kernel that refuses it still gives the right bytes.
    (void)::madvise(mapping_, mapped_bytes_, MADV_SEQUENTIAL);
    const char* first = static_cast<const char*>(mapping_) + kShardHeaderBytes;
    tokens_ = {reinterpret_cast<const uint16_t*>(first), static_cast<size_t>(count)};
}

Shard::~Shard() {
    unmap();
}

Shard::Shard(Shard&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      tokens_(std::exchange(other.tokens_, {})) {}

Shard& Shard::operator=(Shard&& other) noexcept {
    if (this != &other) {
        unmap();
        path_ = std::move(other.path_);
        mapping_ = std::exchange(other.mapping_, nullptr);
        mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
        tokens_ = std::exchange(other.tokens_, {});
    }
    return *this;
}

void Shard::unmap() noexcept {
    if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
    mapping_ = nullptr;
}

void Shard::will_need() const {
    (void)::madvise(mapping_, mapped_bytes_, MADV_WILLNEED);
}

void write_shard(const std::string& path, std::span<const uint16_t> tokens) {
    if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
        throw_data("{}: {} tokens do not fit in one shard, at most {}", path, tokens.size(),
                   std::numeric_limits<int32_t>::max());
    }
    const std::string temporary = path + ".tmp";
    try {
        write_and_rename(temporary, path, tokens);
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
    sync_directory(path);
}

}  // namespace speedrun
