// Limits that Linux control groups (cgroups) of version 1 and 2 set for this process: containers, systemd and batch
// systems use them. man 7 cgroups; the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace speedrun {

// Computing time in cores; 0.5: half of each period on one core.
struct CoreLimit {
    double cores = 0;
    std::string source;  // file that sets the limit
};

// Bytes of memory, or number of tasks (processes and threads).
struct AmountLimit {
    int64_t limit = 0;
    int64_t left = 0;    // limit minus use, at least 0; page cache of files does not count as use
    std::string source;  // file or shell setting that sets the limit
};

// Each limit is the tightest of the process's own group and of the groups that contain it; nullopt: no limit.
struct ControlGroup {
    std::optional<CoreLimit> cores;
    std::optional<AmountLimit> memory;
    std::optional<AmountLimit> tasks;
};

// Reads /proc/self/cgroup, /proc/self/mountinfo and the groups' files. A file that is missing or damaged sets no
// limit. root: prefix of all paths, for tests.
ControlGroup read_control_group(const std::string& root = "");

// Replaces `limit` by `other` if that leaves less.
void tighten(std::optional<AmountLimit>& limit, const AmountLimit& other);

}  // namespace speedrun
