#include "train/comm/nccl_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/device/gpu_interop.h"
#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

constexpr std::chrono::milliseconds kPeriod(20);
constexpr std::chrono::seconds kLeaves(5);  // limit for the host to return from a call after a loss

}  // namespace

NcclWatch::NcclWatch(const NcclApi& api, Device& device, double timeout_s,
                     std::function<void(const std::string&)> on_lost)
    : api_(api),
      device_(device),
      timeout_s_(timeout_s),
      clock_(timeout_s),
      on_lost_(std::move(on_lost)),
      thread_(start_thread("watch over NCCL", [this] { run(); })) {}

NcclWatch::~NcclWatch() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void NcclWatch::add(ncclComm_t comm, const std::string& name, std::function<std::string()> blame) {
    std::lock_guard lock(mutex_);
    // Newest first, so that an error names a communicator in use, not its parent.
    watched_.push_front({comm, name, std::move(blame), {}});
}

bool NcclWatch::remove(ncclComm_t comm) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !blaming_; });
    return std::erase_if(watched_, [&](const Watched& one) { return one.comm == comm; }) > 0;
}

NcclWatch::Watched& NcclWatch::find(ncclComm_t comm) {
    const auto found =
        std::find_if(watched_.begin(), watched_.end(), [&](const Watched& one) { return one.comm == comm; });
    if (found == watched_.end()) throw Error(ExitCode::communication, lost_);
    return *found;
}

std::unique_ptr<Event> NcclWatch::event() {
    if (spare_.empty()) return device_.create_event();
    std::unique_ptr<Event> one = std::move(spare_.back());
    spare_.pop_back();
    return one;
}

void NcclWatch::begin(ncclComm_t comm, const std::string& what, Stream& stream) {
    std::lock_guard lock(mutex_);
    Collective one{what, event(), event(), false, Silence(clock_)};
    stream.record(*one.next);
    find(comm).under_way.push_back(std::move(one));
}

void NcclWatch::end(ncclComm_t comm, Stream& stream) {
    std::lock_guard lock(mutex_);
    Collective& last = find(comm).under_way.back();
    stream.record(*last.done);
    last.enqueued = true;
    last.since.reset();
}

void NcclWatch::throw_if_lost() const {
    std::lock_guard lock(mutex_);
    if (!lost_.empty()) throw Error(ExitCode::communication, lost_);
}

std::string NcclWatch::look(Watched& watched) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = api_.async_error(watched.comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress)
        return api_.describe(state, fmt::format("'{}'", watched.name));
    return "";
}

std::string NcclWatch::late(Watched& watched) {
    auto& under_way = watched.under_way;
    while (!under_way.empty() && under_way.front().enqueued && under_way.front().done->complete()) {
        spare_.push_back(std::move(under_way.front().next));
        spare_.push_back(std::move(under_way.front().done));
        under_way.pop_front();
    }
    if (under_way.empty()) return "";
    Collective& first = under_way.front();
    if (first.enqueued && !first.since && first.next->complete()) first.since.emplace(clock_);
    if (!first.since || !first.since->exceeds(timeout_s_)) return "";
    return fmt::format("{} on '{}' was not done within {:g} s", first.what, watched.name, timeout_s_);
}

void NcclWatch::run() {
    std::unique_lock lock(mutex_);
    std::string reason;
    try {
        use_gpu(device_);
        while (!stop_ && reason.empty()) {
            clock_.read();  // also while no collective is pending
            for (Watched& watched : watched_) {
                reason = look(watched);
                if (!reason.empty()) break;
                reason = late(watched);
                if (reason.empty()) continue;
                blaming_ = true;  // keeps `watched` valid
                lock.unlock();
                const std::string missing = watched.blame();
                lock.lock();
                blaming_ = false;
                changed_.notify_all();
                if (!missing.empty()) reason += ": " + missing;
                break;
            }
            if (reason.empty()) changed_.wait_for(lock, kPeriod, [&] { return stop_; });
        }
    } catch (const std::exception& error) {
        reason = fmt::format("the watch over NCCL failed: {}", error.what());
    }
    if (reason.empty()) return;
    lost_ = reason;
    lock.unlock();
    on_lost_(reason);
    const std::unique_lock outside(calls_, kLeaves);
    if (!outside.owns_lock()) {
        std::fprintf(stderr, "error: %s; the host is blocked in a call of NCCL\n", reason.c_str());
        std::_Exit(static_cast<int>(ExitCode::communication));
    }
    lock.lock();
    for (const Watched& watched : watched_) api_.comm_abort(watched.comm);  // errors are ignored
    watched_.clear();
}

}  // namespace speedrun
