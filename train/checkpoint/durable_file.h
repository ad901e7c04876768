// Files that are on the disk when we say so: every byte written and synced, every return code looked at.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "train/checkpoint/xxh128.h"

namespace speedrun {

// What the operating system does for a checkpoint; tests put one in its place that fails, or "crashes", at
// any call. Each call returns what the system call of its name returns, and sets errno.
class FileSystem {
  public:
    static constexpr size_t kBlock = 4096;

    virtual ~FileSystem() = default;
    virtual int make_folder(const std::string& path);
    virtual int create(const std::string& path);  // for writing, emptied
    // Appends. Many bytes in whole blocks of memory and file (kBlock) go past the page cache, where the
    // file system can do that: a tenth of the processor's time.
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
    std::string xxh128() const { return hash_.hex(); }  // of what was written so far
    // Syncs and closes; the XXH128 of what was written.
    std::string finish();

  private:
    struct Free {
        void operator()(char* memory) const;
    };

    void write_buffer();

    FileSystem& system_;
    const std::string path_;
    int file_ = -1;
    int64_t bytes_ = 0;
    std::unique_ptr<char, Free> buffer_;  // of kBufferBytes, what the system has not been given yet
    size_t buffered_ = 0;
    Xxh128 hash_;
};

// A file that a user named: written in order under a temporary name, then synced and renamed by finish(). A link to a regular
// file is followed. A device or pipe is written directly: a rename would replace /dev/null by a file. Errors throw as
// check_file.
class OutputFile {
  public:
    explicit OutputFile(const std::string& path);
    void write(std::string_view bytes);
    void finish();

  private:
    const std::string path_;
    std::string target_;                 // regular file at the end of links
    std::unique_ptr<DurableFile> file_;  // null: a device or pipe
    std::ofstream direct_;
};

// A small file in one call; its XXH128.
std::string write_durable(FileSystem& system, const std::string& path, const std::string& text);

}  // namespace speedrun
