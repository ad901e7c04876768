#include "data/lock_file.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::streamsize kMaxLockBytes = 4096;

std::string first_line(const char* path) {
    std::string line;
    std::ifstream file(path);
    std::getline(file, line);
    return line;
}

std::string host_name() {
    std::array<char, HOST_NAME_MAX + 1> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// Id of the kernel's boot, equal in all containers of a host; "" if unknown.
std::string boot_id() {
    return first_line("/proc/sys/kernel/random/boot_id");
}

std::string command_line() {
    std::ifstream file("/proc/self/cmdline");
    std::string text(std::istreambuf_iterator<char>(file), {}), shown;
    for (const char c : text.substr(0, 200)) shown += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    return shown.substr(0, shown.find_last_not_of(' ') + 1);
}

}  // namespace

std::string own_lock_text() {
    const Json json = {{"pid", getpid()},
                       {"host", host_name()},
                       {"boot_id", boot_id()},
                       {"started", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))},
                       {"command", command_line()}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

LockWriter::LockWriter(const std::string& text) {
    try {
        const Json json = parse_json<Json>(text);
        if (!json.is_object()) return;
        const auto take = [&](const char* key, std::string& value) {
            if (const auto found = json.find(key); found != json.end())
                value = found->is_string() ? found->get<std::string>() : shown(*found);
        };
        take("pid", pid);
        take("host", host);
        take("boot_id", boot);
        take("started", started);
        take("command", command);
    } catch (const JsonError&) {  // damaged, or of another program: the writer is unknown
    }
}

bool LockWriter::is_of_this_boot() const {
    return !boot.empty() && boot == boot_id();
}

bool LockWriter::has_ended() const {
    const int number = std::atoi(pid.c_str());
    return is_of_this_boot() && number > 0 && kill(number, 0) != 0 && errno == ESRCH;
}

std::string LockWriter::text() const {
    return fmt::format("process {} on {}{}{}", pid, host, started.empty() ? "" : " since " + started,
                       command.empty() ? "" : " (" + command + ")");
}

std::optional<LockSnapshot> read_lock(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return std::nullopt;
    std::array<char, kMaxLockBytes> bytes{};
    const ssize_t count = read(file, bytes.data(), bytes.size());
    struct stat status {};
    const bool known = fstat(file, &status) == 0;
    close(file);
    if (count < 0 || !known) return std::nullopt;
    return LockSnapshot{{bytes.data(), static_cast<size_t>(count)},
                        {status.st_mtim.tv_sec, status.st_mtim.tv_nsec}};
}

bool lock_changes(const std::string& path, const LockSnapshot& before, milliseconds limit) {
    const auto end = steady_clock::now() + limit;
    do {
        std::this_thread::sleep_for(std::min(limit / 10, milliseconds(500)));
        if (read_lock(path) != before) return true;
    } while (steady_clock::now() < end);
    return false;
}

// Retries, because FolderLock::writer() takes a shared lock, usually for microseconds.
KernelLock try_flock(int file, int operation) {
    for (int tries = 0; flock(file, operation | LOCK_NB) != 0;) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return KernelLock::unsupported;
        if (++tries == 3) return KernelLock::held;
        std::this_thread::sleep_for(milliseconds(5));
    }
    return KernelLock::granted;
}

LockWriter writer_in_lock(const std::string& path) {
    LockWriter writer("");
    for (int i = 0; i < 100; ++i) {
        if (const auto seen = read_lock(path); seen) writer = LockWriter(seen->text);
        if (!writer.boot.empty() && !writer.has_ended()) break;
        std::this_thread::sleep_for(milliseconds(10));
    }
    return writer;
}

bool is_file_at(int file, const std::string& path) {
    struct stat own {
    }, there{};
    return fstat(file, &own) == 0 && stat(path.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

}  // namespace speedrun
