#include "data/folder_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "data/errno_text.h"
#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::streamsize kMostBytes = 4096;  // read of a lock file

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

// Identifies the running kernel: the same in all containers of a host, another after a reboot.
std::string boot_id() {
    return first_line("/proc/sys/kernel/random/boot_id");
}

std::string command_line() {
    std::ifstream file("/proc/self/cmdline");
    std::string text(std::istreambuf_iterator<char>(file), {}), shown;
    for (const char c : text.substr(0, 200)) shown += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    return shown.substr(0, shown.find_last_not_of(' ') + 1);
}

std::string own_text() {
    const Json json = {{"pid", getpid()},
                       {"host", host_name()},
                       {"boot_id", boot_id()},
                       {"started", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))},
                       {"command", command_line()}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

struct Writer {
    std::string pid = "?", host = "?", boot, started, command;

    explicit Writer(const std::string& text) {
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
        } catch (const JsonError&) {  // damaged, or another program's: the writer stays unknown
        }
    }
    bool is_of_this_boot() const { return !boot.empty() && boot == boot_id(); }
    bool has_ended() const {
        const int number = std::atoi(pid.c_str());
        return is_of_this_boot() && number > 0 && kill(number, 0) != 0 && errno == ESRCH;
    }
    std::string text() const {
        return fmt::format("process {} on {}{}{}", pid, host, started.empty() ? "" : " since " + started,
                           command.empty() ? "" : " (" + command + ")");
    }
};

// Content and time of a lock file. Opened anew each time, which makes NFS ask its server.
struct Seen {
    std::string text;
    std::pair<time_t, long> renewed{0, 0};
    bool operator==(const Seen&) const = default;
};

std::optional<Seen> look(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return std::nullopt;
    std::array<char, kMostBytes> bytes{};
    const ssize_t count = read(file, bytes.data(), bytes.size());
    struct stat status {};
    const bool known = fstat(file, &status) == 0;
    close(file);
    if (count < 0 || !known) return std::nullopt;
    return Seen{{bytes.data(), static_cast<size_t>(count)}, {status.st_mtim.tv_sec, status.st_mtim.tv_nsec}};
}

// True once the lock is renewed, replaced or removed; false if it stays as it is.
bool changes(const std::string& path, const Seen& before, milliseconds limit) {
    const auto end = steady_clock::now() + limit;
    do {
        std::this_thread::sleep_for(std::min(limit / 10, milliseconds(500)));
        if (look(path) != before) return true;
    } while (steady_clock::now() < end);
    return false;
}

enum class Kernel { granted, held, unsupported };

// Tries a few times: a process that only asks for the writer holds the file for microseconds.
Kernel try_flock(int file, int operation) {
    for (int tries = 0; flock(file, operation | LOCK_NB) != 0;) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return Kernel::unsupported;
        if (++tries == 3) return Kernel::held;
        std::this_thread::sleep_for(milliseconds(5));
    }
    return Kernel::granted;
}

// The writer in a lock that is held. Waits a moment where the content is missing or of a process that has ended: a lock
// is granted before its content is written.
Writer writer_in(const std::string& path) {
    Writer writer("");
    for (int i = 0; i < 100; ++i) {
        if (const auto seen = look(path); seen) writer = Writer(seen->text);
        if (!writer.boot.empty() && !writer.has_ended()) break;
        std::this_thread::sleep_for(milliseconds(10));
    }
    return writer;
}

[[noreturn]] void refuse(const std::string& folder, const std::string& path) {
    const Writer writer = writer_in(path);
    throw_usage(
        "{} is being written by {}, and only one process may write it: wait until it ends, or stop it{}",
        folder, writer.text(),
        writer.is_of_this_boot() ? "" : ". If that host is gone for good, remove " + path);
}

bool is_file_at(int file, const std::string& path) {
    struct stat own {
    }, there{};
    return fstat(file, &own) == 0 && stat(path.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

class Descriptor {
  public:
    explicit Descriptor(int file) : file_(file) {}
    ~Descriptor() { reset(); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return file_; }
    void reset(int file = -1) {
        if (file_ >= 0) close(file_);
        file_ = file;
    }

  private:
    int file_;
};

}  // namespace

struct FolderLock::State {
    std::string folder, path, text, note;
    LockTimes times;
    Descriptor file{-1};
    std::mutex mutex;
    std::condition_variable ends;
    bool ended = false;
    std::atomic<bool> lost = false;
    std::atomic<steady_clock::time_point> checked;  // when the file was last seen to be ours
    std::thread renewal;

    State(const std::string& where, const LockTimes& lock_times)
        : folder(where), path(where + "/" + kFolderLock), text(own_text()), times(lock_times) {
        while (!acquire()) {
        }
        checked = steady_clock::now();
        try {
            renewal = std::thread([this] { renew(); });
        } catch (const std::system_error& error) {
            throw_usage("{} cannot be locked: no thread can be started: {}", folder, error.what());
        }
    }

    ~State() {
        {
            const std::lock_guard guard(mutex);
            ended = true;
        }
        ends.notify_all();
        renewal.join();
        // The descriptor is closed after this, so that nobody is granted a file without a name.
        if (is_ours()) unlink(path.c_str());
    }

    // False if the file has been removed meanwhile by the writer before.
    bool acquire() {
        file.reset(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
        const bool is_new = file.get() >= 0;
        if (!is_new && errno == EEXIST) {
            file.reset(open(path.c_str(), O_RDWR | O_CLOEXEC));
            if (file.get() < 0 && errno == ENOENT) return false;
        }
        if (file.get() < 0) throw_usage("{} cannot be locked: {}: {}", folder, path, errno_text());
        const Kernel kernel = try_flock(file.get(), LOCK_EX);
        if (kernel == Kernel::held) refuse(folder, path);
        if (!is_file_at(file.get(), path)) return false;
        const bool contested = !is_new && !is_free(kernel);
        write();
        if (contested || kernel == Kernel::unsupported) {
            std::this_thread::sleep_for(times.settle);
            if (!is_ours()) refuse(folder, path);
        }
        return true;
    }

    // For a file that was there. False if it is stale by its age alone, so that another host may replace it too.
    bool is_free(Kernel kernel) {
        std::optional<Seen> seen = look(path);
        if (seen && seen->text.empty() && changes(path, *seen, times.settle)) seen = look(path);
        if (!seen || seen->text.empty()) return false;
        const Writer writer(seen->text);
        const bool gone = kernel == Kernel::granted && writer.is_of_this_boot();
        if (!gone) {
            std::fprintf(stderr, "%s: written by %s; waits %.0f s for a sign of life\n", folder.c_str(),
                         writer.text().c_str(), static_cast<double>(times.stale.count()) * 1e-3);
            if (changes(path, *seen, times.stale)) refuse(folder, path);
        }
        note = fmt::format("replaces the lock of {}, which did not end by itself", writer.text());
        return gone;
    }

    void write() {
        if (ftruncate(file.get(), 0) != 0 ||
            pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
            fdatasync(file.get()) != 0)
            throw_usage("{} cannot be locked: {}: {}", folder, path, errno_text());
    }

    bool is_ours() const {
        const std::optional<Seen> seen = look(path);
        return seen && seen->text == text;
    }

    void check() {
        if (is_ours())
            checked = steady_clock::now();
        else
            lost = true;
    }

    void renew() {
        std::unique_lock guard(mutex);
        while (!ends.wait_for(guard, times.renewal, [this] { return ended; })) {
            check();
            if (!lost)
                static_cast<void>(futimens(file.get(), nullptr));  // a lock that is not renewed is replaced
        }
    }
};

FolderLock::FolderLock(const std::string& folder, const LockTimes& times)
    : state_(std::make_unique<State>(folder, times)) {}

FolderLock::~FolderLock() = default;

const std::string& FolderLock::note() const {
    return state_->note;
}

void FolderLock::expect_held() const {
    // A process that was stopped for long looks itself, before it writes.
    if (steady_clock::now() - state_->checked.load() > 2 * state_->times.renewal) state_->check();
    if (!state_->lost) return;
    const std::optional<Seen> seen = look(state_->path);
    throw_usage("{} is no longer locked by this process: {}", state_->folder,
                seen ? "it is written by " + Writer(seen->text).text() : state_->path + " was removed");
}

std::string FolderLock::writer(const std::string& folder, const LockTimes& times) {
    const std::string path = folder + "/" + kFolderLock;
    const std::optional<Seen> seen = look(path);
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!seen || file.get() < 0) return "";
    const Kernel kernel = try_flock(file.get(), LOCK_SH);
    const Writer writer = kernel == Kernel::held ? writer_in(path) : Writer(seen->text);
    if (kernel == Kernel::held) return writer.text();
    if (seen->text.empty() || (kernel == Kernel::granted && writer.is_of_this_boot())) return "";
    return changes(path, *seen, times.stale) && look(path) ? writer.text() : "";
}

}  // namespace speedrun
