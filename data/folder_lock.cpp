#include "data/folder_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "data/errno_text.h"
#include "data/lock_file.h"
#include "kernels/device/error.h"
#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

using std::chrono::steady_clock;

[[noreturn]] void refuse(const std::string& folder, const std::string& path) {
    const LockWriter writer = writer_in_lock(path);
    throw_usage(
        "{} is being written by {}, and only one process may write it: wait until it ends, or stop it{}",
        folder, writer.text(),
        writer.is_of_this_boot() ? "" : ". If that host is gone for good, remove " + path);
}

}  // namespace

// Not in the unnamed namespace, because it is a member of FolderLock::State.
class LockDescriptor {
  public:
    explicit LockDescriptor(int file) : file_(file) {}
    ~LockDescriptor() { reset(); }
    LockDescriptor(const LockDescriptor&) = delete;
    LockDescriptor& operator=(const LockDescriptor&) = delete;
    int get() const { return file_; }
    void reset(int file = -1) {
        if (file_ >= 0) close(file_);
        file_ = file;
    }

  private:
    int file_;
};

struct FolderLock::State {
    std::string folder, path, text, note;
    LockTimes times;
    LockDescriptor file{-1};
    std::mutex mutex;
    std::condition_variable ends;
    bool ended = false;
    bool contested = false;  // another host may replace the same stale lock
    std::atomic<bool> lost = false;
    std::atomic<steady_clock::time_point> checked;  // time of the last check that the file is ours
    std::thread renewal;

    State(const std::string& where, const LockTimes& lock_times)
        : folder(where), path(where + "/" + kFolderLock), text(own_lock_text()), times(lock_times) {
        while (!acquire()) {
        }
        checked = steady_clock::now();
        renewal = start_thread("renewal of a lock", [this] { renew(); });
    }

    ~State() {
        {
            const std::lock_guard guard(mutex);
            ended = true;
        }
        ends.notify_all();
        renewal.join();
        // The descriptor is closed after the unlink, so that no process is granted a file without a name.
        if (is_ours()) unlink(path.c_str());
    }

    // Returns false if another process or this one has removed the file meanwhile.
    bool acquire() {
        file.reset(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
        const bool is_new = file.get() >= 0;
        if (!is_new && errno == EEXIST) {
            file.reset(open(path.c_str(), O_RDWR | O_CLOEXEC));
            if (file.get() < 0 && errno == ENOENT) return false;
        }
        if (file.get() < 0) throw_usage("{} cannot be locked: {}: {}", folder, path, errno_text());
        const KernelLock kernel = try_flock(file.get(), LOCK_EX);
        if (kernel == KernelLock::held) return remove_of_lost_host();
        if (!is_file_at(file.get(), path)) return false;
        if (!is_new) replace(kernel);
        contested = contested || kernel == KernelLock::unsupported;
        write();
        if (contested) std::this_thread::sleep_for(times.settle);
        if (contested && !is_ours()) refuse(folder, path);
        return true;
    }

    // A file server may keep the lock of a dead host. Returns false: the file was removed.
    bool remove_of_lost_host() {
        const LockWriter writer = writer_in_lock(path);
        if (writer.boot.empty() || writer.is_of_this_boot()) refuse(folder, path);
        const std::optional<LockSnapshot> seen = read_lock(path);
        if (!seen) return false;
        expect_silence(writer, *seen);
        if (read_lock(path) == seen) unlink(path.c_str());
        return false;
    }

    // Replaces the content of a granted file left by another process.
    void replace(KernelLock kernel) {
        std::optional<LockSnapshot> seen = read_lock(path);
        if (seen && seen->text.empty() && lock_changes(path, *seen, times.settle)) seen = read_lock(path);
        const LockWriter writer(seen ? seen->text : "");
        if (kernel == KernelLock::granted && writer.is_of_this_boot())
            note_end_of(writer);
        else if (seen && !writer.boot.empty())
            expect_silence(writer, *seen);
        else
            contested = true;
    }

    void expect_silence(const LockWriter& writer, const LockSnapshot& seen) {
        std::fprintf(stderr, "%s: written by %s; waits %.0f s for a sign of life\n", folder.c_str(),
                     writer.text().c_str(), static_cast<double>(times.stale.count()) * 1e-3);
        if (lock_changes(path, seen, times.stale)) refuse(folder, path);
        contested = true;
        note_end_of(writer);
    }

    void note_end_of(const LockWriter& writer) {
        note = fmt::format("replaces the lock of {}, which did not end by itself", writer.text());
    }

    void write() {
        if (ftruncate(file.get(), 0) != 0 ||
            pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
            fdatasync(file.get()) != 0)
            throw Error(ExitCode::failure,
                        fmt::format("{} cannot be locked: {}: {}", folder, path, errno_text()));
    }

    bool is_ours() const {
        const std::optional<LockSnapshot> seen = read_lock(path);
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
    // A process that was stopped for a long time checks before it writes.
    if (steady_clock::now() - state_->checked.load() > 2 * state_->times.renewal) state_->check();
    if (!state_->lost) return;
    const std::optional<LockSnapshot> seen = read_lock(state_->path);
    throw_usage("{} is no longer locked by this process: {}", state_->folder,
                seen ? "it is written by " + LockWriter(seen->text).text() : state_->path + " was removed");
}

std::string FolderLock::writer(const std::string& folder, const LockTimes& times) {
    const std::string path = folder + "/" + kFolderLock;
    const std::optional<LockSnapshot> seen = read_lock(path);
    const LockDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!seen || file.get() < 0) return "";
    const KernelLock kernel = try_flock(file.get(), LOCK_SH);
    const LockWriter writer = kernel == KernelLock::held ? writer_in_lock(path) : LockWriter(seen->text);
    if (writer.boot.empty() || writer.is_of_this_boot())
        return kernel == KernelLock::held ? writer.text() : "";
    return lock_changes(path, *seen, times.stale) && read_lock(path) ? writer.text() : "";
}

}  // namespace speedrun
