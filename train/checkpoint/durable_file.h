// Files that are durable when finish() returns: every byte written and synced, every return code checked.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "train/checkpoint/xxh128.h"

namespace speedrun {

// System calls of a checkpoint. Tests substitute one that fails or "crashes" at any call. Each function returns the
// result of the system call of its name and sets errno.
class FileSystem {
  public:
    static constexpr size_t kBlock = 4096;

    virtual ~FileSystem() = default;
    virtual int make_folder(const std::string& path);
    virtual int create(const std::string& path);  // opens for writing and truncates
    // Appends. Large writes whose memory and file offsets are whole blocks (kBlock) bypass the page cache, if the file
    // system can: 1/10 of the CPU time.
    virtual int64_t write(int file, const void* data, size_t bytes);
    virtual int sync(int file);
    virtual int close(int file);
    virtual int sync_folder(const std::string& path);  // syncs the folder's entries
    virtual int rename(const std::string& from, const std::string& to);
    // Swaps the names of two existing folders atomically; fails if the file system cannot.
    virtual int exchange(const std::string& a, const std::string& b);
    virtual int remove_folder(const std::string& path);  // recursive
};
FileSystem& real_file_system();

// Throws Error(failure) with path, action and the system's reason if `result` is negative.
int64_t check_file(int64_t result, const std::string& path, const char* action);

// One new file, written sequentially and hashed while it is written. Errors throw as check_file.
class DurableFile {
  public:
    DurableFile(FileSystem& system, std::string path);
    ~DurableFile();  // without finish(), the incomplete file remains
    DurableFile(const DurableFile&) = delete;
    DurableFile& operator=(const DurableFile&) = delete;

    void write(const void* data, size_t bytes);
    int64_t bytes() const { return bytes_; }
    std::string xxh128() const { return hash_.hex(); }  // covers all bytes written so far
    // Syncs and closes the file. Returns its XXH128.
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
    std::unique_ptr<char, Free> buffer_;  // kBufferBytes; bytes not yet passed to the system
    size_t buffered_ = 0;
    Xxh128 hash_;
};

// Output file named by the user. Written under a temporary name, then synced and renamed by finish(). A link to a
// regular file is followed. A device or pipe is written directly: a rename would replace /dev/null by a file. Errors
// throw as check_file.
class OutputFile {
  public:
    explicit OutputFile(const std::string& path);
    void write(std::string_view bytes);
    void finish();

  private:
    const std::string path_;
    std::string target_;                 // regular file that the links resolve to
    std::unique_ptr<DurableFile> file_;  // null for a device or pipe
    std::ofstream direct_;
};

// Writes a small file in one call. Returns its XXH128.
std::string write_durable(FileSystem& system, const std::string& path, const std::string& text);

}  // namespace speedrun
