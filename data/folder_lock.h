// One writer of a folder: run folders, attempts, datasets in preparation. FOLDER/.lock names the writer (JSON: pid, host,
// boot of the host, start time, command) and is locked with flock(2), which ends with the process however it ends.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace speedrun {

inline constexpr const char* kFolderLock = ".lock";

// For file systems on which flock does not reach other hosts. The writer renews the time of the lock file; a lock that a process
// on another host, or before a reboot, has left is stale when it was not renewed for `stale`.
struct LockTimes {
    std::chrono::milliseconds renewal{5000};
    std::chrono::milliseconds stale{20000};
    std::chrono::milliseconds settle{500};  // wait for another host that replaces the same stale lock
};

class FolderLock {
  public:
    // Usage error that names the writer if the folder has one, or the reason if it cannot be locked. A stale lock is
    // replaced; the wait for one of another host is announced on stderr.
    explicit FolderLock(const std::string& folder, const LockTimes& times = {});
    ~FolderLock();  // removes the file
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

    // The stale lock that this one replaced, as a sentence; empty: none.
    const std::string& note() const;
    // Usage error if the lock file is no longer ours: it was removed, or another host took this process for dead.
    void expect_held() const;

    // The writer of the folder, as text: "process 12 on node3 since 2026-11-28 18:20:03 UTC (speedrun train ...)". Empty: none.
    static std::string writer(const std::string& folder, const LockTimes& times = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace speedrun
