// Lock file of a FolderLock: its content, its age and the kernel's lock.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

namespace speedrun {

// Returns the JSON of this process: pid, host, boot of the host, start time, command.
std::string own_lock_text();

// Process named in a lock file; "?" for an unknown pid or host.
struct LockWriter {
    std::string pid = "?", host = "?", boot, started, command;

    explicit LockWriter(const std::string& text);
    bool is_of_this_boot() const;
    bool has_ended() const;  // reliable only for a process of this host
    std::string text() const;
};

// Content and time of a lock file. Each look reopens the file, so that NFS queries its server.
struct LockSnapshot {
    std::string text;
    std::pair<time_t, long> renewed{0, 0};  // seconds, nanoseconds
    bool operator==(const LockSnapshot&) const = default;
};
std::optional<LockSnapshot> read_lock(const std::string& path);
// True if the lock is renewed, replaced or removed within the limit.
bool lock_changes(const std::string& path, const LockSnapshot& before, std::chrono::milliseconds limit);

enum class KernelLock { granted, held, unsupported };
// Calls flock without waiting; `operation` is LOCK_EX or LOCK_SH.
KernelLock try_flock(int file, int operation);

// Returns the writer of a held lock. Waits briefly if the content is missing or from a process that has ended: a lock
// is granted before its content is written.
LockWriter writer_in_lock(const std::string& path);

// True if `path` still names this open file.
bool is_file_at(int file, const std::string& path);

}  // namespace speedrun
