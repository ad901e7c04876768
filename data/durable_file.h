// Files that are durable after the call: every byte written and synced, every return code checked.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "data/xxh128.h"

namespace speedrun {

// System calls of a writer. Tests derive from it to fail, or to stop the process, at any call. Each function returns the result
// of the system call of its name, and sets errno.
class FileSystem {
  public:
    static constexpr size_t kBlock = 4096;

    virtual ~FileSystem() = default;
    virtual int make_folder(const std::string& path);
    virtual int create(const std::string& path);  // for writing, emptied; a link is not followed
    // Appends. Large writes of whole blocks (kBlock) from aligned memory bypass the page cache if the file system
    // supports it: 1/10 of the CPU time.
    virtual int64_t write(int file, const void* data, size_t bytes);
    virtual int sync(int file);
    virtual int close(int file);
    virtual int sync_folder(const std::string& path);  // its directory entries
    virtual int rename(const std::string& from, const std::string& to);
    // Exchanges the names of two existing folders atomically; fails where the file system cannot.
    virtual int exchange(const std::string& a, const std::string& b);
    virtual int remove_folder(const std::string& path);  // with its content
};
FileSystem& real_file_system();

// Throws Error(failure) with path, action and the system's reason unless `result` is 0 or more.
int64_t check_file(int64_t result, const std::string& path, const char* action);

// A new file, written from begin to end and hashed meanwhile. Errors throw as check_file.
class DurableFile {
  public:
    DurableFile(FileSystem& system, std::string path);
    ~DurableFile();  // without finish(): leaves an incomplete file
    DurableFile(const DurableFile&) = delete;
    DurableFile& operator=(const DurableFile&) = delete;

    void write(const void* data, size_t bytes);
    int64_t bytes() const { return bytes_; }
    std::string xxh128() const { return hash_.hex(); }  // hash of the bytes written so far
    // Syncs and closes. Returns the XXH128 of the file.
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
    std::unique_ptr<char, Free> buffer_;  // kBufferBytes, not yet passed to the system
    size_t buffered_ = 0;
    Xxh128 hash_;
};

// A file that replaces `path` in one step: finish() syncs `path`.part, renames it, and syncs the folder. Without finish() the
// temporary file is removed and `path` is unchanged. Errors throw as check_file.
class OutputFile {
  public:
    // named: a user named the path, so a link to a regular file is followed, and a device or pipe is written directly: a rename
    // would replace /dev/null by a file. Otherwise a link is replaced.
    enum class Path : uint8_t { named, own };

    explicit OutputFile(const std::string& path, Path kind = Path::named);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(std::string_view bytes);
    void finish();

  private:
    std::string unfinished() const { return target_ + ".part"; }

    const std::string path_;
    std::string target_;                 // regular file at the end of links
    std::unique_ptr<DurableFile> file_;  // null: a device or pipe, or finished
    std::ofstream direct_;
};

// Writes a file by OutputFile.
void write_file(const std::string& path, std::string_view bytes,
                OutputFile::Path kind = OutputFile::Path::named);

// Writes a small new file in one call, without a temporary name. Returns its XXH128.
std::string write_durable(FileSystem& system, const std::string& path, const std::string& text);

}  // namespace speedrun
