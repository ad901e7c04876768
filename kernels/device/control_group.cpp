#include "kernels/device/control_group.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Version 1 writes 2^63 minus a page if there is no limit.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> number_in(const std::string& text) {
    int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (text.empty() || error != std::errc() || rest != end) return std::nullopt;  // "max" is not a number
    return value;
}

std::string first_line(const fs::path& file) {
    std::ifstream stream(file);
    std::string line;
    std::getline(stream, line);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    return line;
}

std::optional<int64_t> amount_in(const fs::path& file) {
    const std::optional<int64_t> value = number_in(first_line(file));
    if (!value || *value < 0 || *value >= kNoLimit) return std::nullopt;
    return value;
}

// Value of a key in a file with lines "key number".
std::optional<int64_t> amount_in(const fs::path& file, const std::string& key) {
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);) {
        if (!line.starts_with(key + " ")) continue;
        const std::optional<int64_t> value = number_in(line.substr(key.size() + 1));
        return value && *value >= 0 && *value < kNoLimit ? value : std::nullopt;
    }
    return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

bool holds(const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

// mountinfo writes a space as \040.
std::string unescaped(const std::string& text) {
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
        int code = 0;
        if (text[i] == '\\' && i + 3 < text.size() &&
            std::from_chars(&text[i + 1], &text[i + 4], code, 8).ptr == &text[i + 4]) {
            plain += static_cast<char>(code);
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

struct Mount {
    std::string root;  // group that the mount point shows
    std::string point;
};

// Group paths and mounts of this process.
class Hierarchies {
  public:
    explicit Hierarchies(std::string root) : root_(std::move(root)) {
        std::ifstream groups(root_ + "/proc/self/cgroup");
        for (std::string line; std::getline(groups, line);) groups_.push_back(line);
        std::ifstream mounts(root_ + "/proc/self/mountinfo");
        for (std::string line; std::getline(mounts, line);) mounts_.push_back(line);
    }

    // Folders of the groups under a version 1 controller (version 2: ""), from the process's own group up to
    // the mount point.
    std::vector<fs::path> folders(const std::string& controller) const {
        std::vector<fs::path> all;
        const std::string group = group_of(controller);
        for (const Mount& mount : mounts_of(controller)) {
            const fs::path point = root_ + mount.point;
            for (fs::path folder = own_folder({mount.root, point.string()}, group);;
                 folder = folder.parent_path()) {
                if (std::find(all.begin(), all.end(), folder) == all.end()) all.push_back(folder);
                if (folder == point || !folder.has_relative_path()) break;
            }
        }
        return all;
    }

    std::string without_root(const fs::path& path) const { return path.string().substr(root_.size()); }

  private:
    // "4:memory:/path" of version 1, "0::/path" of version 2.
    std::string group_of(const std::string& controller) const {
        for (const std::string& line : groups_) {
            const size_t first = line.find(':'), second = line.find(':', first + 1);
            if (first == std::string::npos || second == std::string::npos) continue;
            const std::string controllers = line.substr(first + 1, second - first - 1);
            const bool own =
                controller.empty() ? line.starts_with("0::") : holds(split(controllers, ','), controller);
            if (own) return line.substr(second + 1);
        }
        return "/";
    }

    // Parses "36 35 0:30 ROOT POINT options optional... - TYPE source super-options". The usual mount point
    // follows, for containers that provide it without a mount.
    std::vector<Mount> mounts_of(const std::string& controller) const {
        std::vector<Mount> mounts;
        for (const std::string& line : mounts_) {
            const size_t dash = line.find(" - ");
            if (dash == std::string::npos) continue;
            const std::vector<std::string> head = split(line.substr(0, dash), ' '),
                                           tail = split(line.substr(dash + 3), ' ');
            constexpr size_t kHead = 5, kTail = 3;
            if (head.size() < kHead || tail.size() < kTail) continue;
            const bool own = controller.empty()
                                 ? tail[0] == "cgroup2"
                                 : tail[0] == "cgroup" && holds(split(tail[2], ','), controller);
            if (own) mounts.push_back({unescaped(head[3]), unescaped(head[4])});
        }
        mounts.push_back(
            {"/", controller.empty() ? std::string("/sys/fs/cgroup") : "/sys/fs/cgroup/" + controller});
        return mounts;
    }

    // In a namespace the group or the mount's root may be outside, "/..". The mount point is then the nearest
    // visible group.
    static fs::path own_folder(const Mount& mount, const std::string& group) {
        std::string below = group;
        const std::string prefix = mount.root == "/" ? "" : mount.root;
        if (group == prefix || group.starts_with(prefix + "/")) below = group.substr(prefix.size());
        for (const fs::path& part : fs::path(below))
            if (part == "..") return mount.point;
        fs::path folder = mount.point;
        std::error_code error;
        for (const std::string& part : split(below, '/')) {
            if (part.empty() || part == ".") continue;
            if (!fs::is_directory(folder / part, error)) break;
            folder /= part;
        }
        return folder;
    }

    const std::string root_;
    std::vector<std::string> groups_, mounts_;
};

std::optional<CoreLimit> cores_in(const fs::path& folder) {
    constexpr double kDefaultPeriod = 100000;  // µs
    double quota = 0, period = kDefaultPeriod;
    std::string file = "cpu.max";
    if (const std::vector<std::string> words = split(first_line(folder / file), ' '); !words.empty()) {
        quota = static_cast<double>(number_in(words[0]).value_or(0));
        if (words.size() > 1) period = static_cast<double>(number_in(words[1]).value_or(0));
    } else {
        file = "cpu.cfs_quota_us";
        quota = static_cast<double>(amount_in(folder / file).value_or(0));
        period = static_cast<double>(amount_in(folder / "cpu.cfs_period_us").value_or(kDefaultPeriod));
    }
    if (!(quota > 0) || !(period > 0)) return std::nullopt;
    return CoreLimit{quota / period, (folder / file).string()};
}

struct MemoryFiles {
    std::vector<std::string> limits;
    const char* use;
    const char* inactive;  // both: keys of memory.stat
    const char* active;
};

void read_memory(const fs::path& folder, const MemoryFiles& files, std::optional<AmountLimit>& memory) {
    const auto of_stat = [&](const char* key) { return amount_in(folder / "memory.stat", key); };
    const int64_t cache = of_stat(files.inactive).value_or(0) + of_stat(files.active).value_or(0);
    const int64_t use = std::max<int64_t>(0, amount_in(folder / files.use).value_or(0) - cache);
    const auto add = [&](const std::optional<int64_t>& limit, const std::string& file) {
        if (limit) tighten(memory, {*limit, std::max<int64_t>(0, *limit - use), (folder / file).string()});
    };
    for (const std::string& file : files.limits) add(amount_in(folder / file), file);
    // Version 1: the tightest limit of the groups that contain this one, visible or not.
    add(of_stat("hierarchical_memory_limit"), "memory.stat");
}

void read_tasks(const fs::path& folder, std::optional<AmountLimit>& tasks) {
    const std::optional<int64_t> limit = amount_in(folder / "pids.max");
    if (!limit) return;
    const int64_t use = amount_in(folder / "pids.current").value_or(0);
    tighten(tasks, {*limit, std::max<int64_t>(0, *limit - use), (folder / "pids.max").string()});
}

}  // namespace

void tighten(std::optional<AmountLimit>& limit, const AmountLimit& other) {
    if (!limit || other.left < limit->left) limit = other;
}

ControlGroup read_control_group(const std::string& root) {
    const Hierarchies all(root);
    ControlGroup group;
    for (const char* controller : {"", "cpu"}) {
        for (const fs::path& folder : all.folders(controller)) {
            const std::optional<CoreLimit> cores = cores_in(folder);
            if (cores && (!group.cores || cores->cores < group.cores->cores)) group.cores = cores;
        }
    }
    const MemoryFiles second{{"memory.max", "memory.high"}, "memory.current", "inactive_file", "active_file"};
    for (const fs::path& folder : all.folders("")) read_memory(folder, second, group.memory);
    const MemoryFiles first{
        {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
    const std::vector<fs::path> folders = all.folders("memory");
    for (const fs::path& folder : folders) {
        // Before Linux 5.11 the limit of a group of version 1 may not include groups below it.
        if (folder != folders.front() && first_line(folder / "memory.use_hierarchy") == "0") break;
        read_memory(folder, first, group.memory);
    }
    for (const char* controller : {"", "pids"})
        for (const fs::path& folder : all.folders(controller)) read_tasks(folder, group.tasks);
    if (group.cores) group.cores->source = all.without_root(group.cores->source);
    for (std::optional<AmountLimit>* limit : {&group.memory, &group.tasks})
        if (*limit) (*limit)->source = all.without_root((*limit)->source);
    return group;
}

}  // namespace speedrun
