#include "data/durable_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Bytes of a write to the system.
constexpr size_t kBufferBytes = size_t{4} << 20;
// Bytes that are hashed while they are in the caches of the core.
constexpr size_t kCachedBytes = size_t{64} << 10;

}  // namespace

int FileSystem::make_folder(const std::string& path) {
    constexpr mode_t kMode = 0777;  // less the user's umask
    const int result = ::mkdir(path.c_str(), kMode);
    return result != 0 && errno == EEXIST ? 0 : result;
}

int FileSystem::create(const std::string& path) {
    constexpr mode_t kMode = 0666;
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kMode);
}

int64_t FileSystem::write(int file, const void* data, size_t bytes) {
    constexpr size_t kMany = size_t{1} << 20;  // smaller direct writes wait for the disk too often
    const int flags = ::fcntl(file, F_GETFL);
    if (flags < 0) return -1;
    const bool whole_blocks =
        bytes >= kMany && bytes % kBlock == 0 && reinterpret_cast<uintptr_t>(data) % kBlock == 0;
    const auto set_direct = [&](bool direct) {
        const int requested = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
        return requested == flags || ::fcntl(file, F_SETFL, requested) == 0;
    };
    if (whole_blocks && set_direct(true)) {
        const int64_t written = ::write(file, data, bytes);
        if (written >= 0 || errno != EINVAL) return written;
        // The file system needs larger blocks, or has no O_DIRECT.
        if (::fcntl(file, F_SETFL, flags & ~O_DIRECT) != 0) return -1;
        return ::write(file, data, bytes);
    }
    if (!whole_blocks && !set_direct(false)) return -1;
    return ::write(file, data, bytes);
}

int FileSystem::sync(int file) {
    return ::fsync(file);
}

int FileSystem::close(int file) {
    return ::close(file);
}

int FileSystem::sync_folder(const std::string& path) {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    const int result = ::fsync(folder), error = errno;
    ::close(folder);
    errno = error;
    return result;
}

int FileSystem::rename(const std::string& from, const std::string& to) {
    return std::rename(from.c_str(), to.c_str());
}

int FileSystem::exchange(const std::string& a, const std::string& b) {
    return static_cast<int>(
        ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}

int FileSystem::remove_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    errno = error.value();
    return error ? -1 : 0;
}

FileSystem& real_file_system() {
    static FileSystem system;
    return system;
}

int64_t check_file(int64_t result, const std::string& path, const char* action) {
    if (result >= 0) return result;
    throw Error(ExitCode::failure, fmt::format("{}: {} failed: {}", path, action, std::strerror(errno)));
}

void DurableFile::Free::operator()(char* memory) const {
    ::operator delete (memory, std::align_val_t{FileSystem::kBlock});
}

DurableFile::DurableFile(FileSystem& system, std::string path)
    : system_(system),
      path_(std::move(path)),
      file_(static_cast<int>(check_file(system.create(path_), path_, "creating it"))),
      buffer_(static_cast<char*>(::operator new (kBufferBytes, std::align_val_t{FileSystem::kBlock}))) {}

DurableFile::~DurableFile() {
    if (file_ >= 0) ::close(file_);
}

void DurableFile::write(const void* data, size_t bytes) {
    bytes_ += static_cast<int64_t>(bytes);
    for (const char* next = static_cast<const char*>(data); bytes > 0;) {
        const size_t part = std::min({bytes, kBufferBytes - buffered_, kCachedBytes});
        std::memcpy(buffer_.get() + buffered_, next, part);
        hash_.update(buffer_.get() + buffered_, part);
        buffered_ += part;
        next += part;
        bytes -= part;
        if (buffered_ == kBufferBytes) write_buffer();
    }
}

void DurableFile::write_buffer() {
    const char* next = buffer_.get();
    for (size_t left = std::exchange(buffered_, 0); left > 0;) {
        const int64_t written = system_.write(file_, next, left);
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = ENOSPC;  // avoids an endless loop
        check_file(written == 0 ? -1 : written, path_, "writing");
        next += written;
        left -= static_cast<size_t>(written);
    }
}

std::string DurableFile::finish() {
    write_buffer();
    check_file(system_.sync(file_), path_, "syncing to disk");
    const int file = std::exchange(file_, -1);
    check_file(system_.close(file), path_, "closing");
    return hash_.hex();
}

OutputFile::OutputFile(const std::string& path, Path kind) : path_(path), target_(path) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status))
        throw Error(ExitCode::failure, path + ": a folder, expected a file to write");
    if (kind == Path::named && fs::exists(status) && !fs::is_regular_file(status)) {
        direct_.open(path, std::ios::binary);
        check_file(direct_ ? 0 : -1, path, "opening");
        return;
    }
    constexpr int kMaxLinks = 40;  // the limit of Linux
    for (int links = 0; kind == Path::named && links < kMaxLinks && fs::is_symlink(target_, error); ++links)
        target_ = (fs::path(target_).parent_path() / fs::read_symlink(target_, error)).string();
    file_ = std::make_unique<DurableFile>(real_file_system(), unfinished());
}

OutputFile::~OutputFile() {
    if (!file_) return;
    file_.reset();
    std::error_code ignored;
    std::filesystem::remove(unfinished(), ignored);
}

void OutputFile::write(std::string_view bytes) {
    if (file_) return file_->write(bytes.data(), bytes.size());
    direct_.write(bytes.data(), std::ssize(bytes));
    check_file(direct_ ? 0 : -1, path_, "writing");
}

void OutputFile::finish() {
    if (!file_) {
        direct_.close();
        check_file(direct_ ? 0 : -1, path_, "writing");
        return;
    }
    file_->finish();
    check_file(real_file_system().rename(unfinished(), target_), path_, "renaming");
    file_.reset();
    const std::string folder = std::filesystem::path(target_).parent_path().string();
    check_file(real_file_system().sync_folder(folder.empty() ? "." : folder), path_, "syncing its folder");
}

void write_file(const std::string& path, std::string_view bytes, OutputFile::Path kind) {
    OutputFile file(path, kind);
    file.write(bytes);
    file.finish();
}

std::string write_durable(FileSystem& system, const std::string& path, const std::string& text) {
    DurableFile file(system, path);
    file.write(text.data(), text.size());
    return file.finish();
}

}  // namespace speedrun
