// FolderLock: a single writer per folder, for run folders, attempts and datasets in preparation. FOLDER/.lock names the
// writer (JSON: pid, host, boot of the host, start time, command) and is locked with flock(2), which ends with the
// process.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace speedrun {

inline constexpr const char* kFolderLock = ".lock";

// Times for file systems on which flock does not reach other hosts. The writer renews the lock file's time. A lock left
// by a process on another host, or before a reboot, is stale if it was not renewed for `stale`.
struct LockTimes {
    std::chrono::milliseconds renewal{5000};
    std::chrono::milliseconds stale{20000};
    std::chrono::milliseconds settle{500};  // wait for another host that replaces the same stale lock
};

class FolderLock {
  public:
    // Throws a usage error that names the current writer, or the reason if the folder cannot be locked. Replaces a
    // stale lock; waiting for another host's lock is announced on stderr.
    explicit FolderLock(const std::string& folder, const LockTimes& times = {});
    ~FolderLock();  // removes the file
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

    // Sentence on the stale lock that this one replaced; empty: none.
    const std::string& note() const;
    // Throws a usage error if the lock file is no longer ours: it was removed, or another host considered this process
    // dead.
    void expect_held() const;

    // Returns the folder's writer as text: "process 12 on node3 since 2026-11-28 18:20:03 UTC (speedrun train ...)";
    // empty: none.
    static std::string writer(const std::string& folder, const LockTimes& times = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace speedrun
