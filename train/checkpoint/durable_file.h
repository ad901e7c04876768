// Files that are on the disk when we say so: every byte written and synced, every return code looked at.
#pragma once

#include <cstdint>
#include <string>

#include "data/sha256.h"

namespace speedrun {

// What the operating system does for a checkpoint; tests put one in its place that fails, or "crashes", at
// any call. Each call returns what the system call of its name returns, and sets errno.
class FileSystem {
  public:
    virtual ~FileSystem() = default;
    virtual int make_folder(const std::string& path);
    virtual int create(const std::string& path);  // for writing, emptied
    virtual int64_t write(int file, const void* data, size_t bytes);
    virtual int sync(int file);
    virtual int close(int file);
    virtual int sync_folder(const std::string& path);  // the names in it
    virtual int rename(const std::string& from, const std::string& to);
    // Both folders exist and change names at one instant; fails where the file system cannot.
    virtual int exchange(const std::string& a, const std::string& b);
    virtual int remove_folder(const std::string& path);  // and what is in it
};
FileSystem& real_file_system();

// Throws Error(failure) with path, action and the system's reason unless `result` is 0 or more.
int64_t check_file(int64_t result, const std::string& path, const char* action);

// One new file, written from begin to end and hashed on the way. Errors throw as check_file.
class DurableFile {
  public:
    DurableFile(FileSystem& system, std::string path);
    ~DurableFile();  // without finish(): a torn file stays behind
    DurableFile(const DurableFile&) = delete;
    DurableFile& operator=(const DurableFile&) = delete;

    void write(const void* data, size_t bytes);
    int64_t bytes() const { return bytes_; }
    // Syncs and closes; the SHA-256 of what was written.
    std::string finish();

  private:
    FileSystem& system_;
    const std::string path_;
    int file_ = -1;
    int64_t bytes_ = 0;
    Sha256 hash_;
};

// A small file in one call; its SHA-256.
std::string write_durable(FileSystem& system, const std::string& path, const std::string& text);

}  // namespace speedrun
