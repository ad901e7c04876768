#include "train/comm/peer_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>

#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

constexpr int kControlTag = 1;
constexpr auto kPeriod =
    std::chrono::milliseconds(10);               // period of the watch's thread; no measurable cost when idle
constexpr double kAnswer = 2;                    // s; a running watch answers within its period
constexpr std::chrono::milliseconds kSend(500);  // time to send the notification of the end
constexpr double kUnwind = 3;                    // s; for a notified rank to exit by itself
// A wait first yields its time slice, then sleeps: on a shared core, the awaited rank must be able to run.
constexpr int kYields = 200;
constexpr auto kPollInterval = std::chrono::microseconds(20);

}  // namespace

PeerWatch::PeerWatch(MessageTransport& transport, double timeout_s)
    : transport_(transport),
      timeout_s_(timeout_s),
      clock_(timeout_s),
      channel_(transport.open_channel()),
      thread_(start_thread("watch over other ranks", [this] { run(); })) {}

PeerWatch::~PeerWatch() {
    stop_ = true;
    thread_.join();
}

// A wait that has lasted long enough to be reported to other ranks.
class PeerWatch::ListedWait {
  public:
    ListedWait(PeerWatch& watch, const std::string& what) : watch_(watch) {
        std::lock_guard lock(watch_.mutex_);
        entry_ = watch_.waits_.insert(watch_.waits_.end(), {what, -1});
    }
    ~ListedWait() {
        std::lock_guard lock(watch_.mutex_);
        watch_.waits_.erase(entry_);
    }
    void set_peer(int peer) {
        std::lock_guard lock(watch_.mutex_);
        entry_->peer = peer;
    }

  private:
    PeerWatch& watch_;
    std::list<Wait>::iterator entry_;
};

void PeerWatch::wait(PendingMessages& messages, const std::string& what) {
    std::optional<ListedWait> listed;
    std::optional<Silence> silence;
    int64_t pending = messages.num_pending();
    for (int turn = 0; !messages.test(); ++turn) {
        throw_if_ended();
        if (turn < kYields) {
            std::this_thread::yield();
            continue;
        }
        std::this_thread::sleep_for(kPollInterval);
        if (!listed) {
            listed.emplace(*this, what);
            silence.emplace(clock_);
        }
        listed->set_peer(messages.first_pending_peer());
        if (messages.num_pending() != pending) {
            pending = messages.num_pending();
            silence->restart();
        }
        if (silence->exceeds(timeout_s_)) give_up(messages.first_pending_peer(), what);
    }
}

void PeerWatch::give_up(int peer, const std::string& what) {
    end_all(ExitCode::communication, blame(peer, what));
    throw Error(*ended());
}

void PeerWatch::set_hosts(std::vector<std::string> hosts) {
    if (std::set(hosts.begin(), hosts.end()).size() > 1) hosts_ = std::move(hosts);
}

std::string PeerWatch::name(int rank) const {
    if (hosts_.empty() || rank < 0) return fmt::format("rank {}", rank);
    return fmt::format("rank {} on {}", rank, hosts_.at(static_cast<size_t>(rank)));
}

std::string PeerWatch::blame(int peer, const std::string& what) {
    std::string story =
        fmt::format("{} waited {:g} s for {} in {}", name(transport_.rank()), timeout_s_, name(peer), what);
    std::set<int> seen{transport_.rank(), peer};
    for (;;) {
        const std::optional<Control> answer = query(peer);
        if (!answer)
            return fmt::format("{} is lost: it does not answer, so it is dead or stopped{} ({})", name(peer),
                               hosts_.empty() ? "" : ", or its host or the way there is gone", story);
        if (answer->kind == Kind::waits_not)
            return fmt::format("{} hangs: it runs, but did not come to communicate ({})", name(peer), story);
        story += fmt::format("; {} waits for {} in {}", name(peer), name(answer->value), answer->text);
        peer = answer->value;
        if (!seen.insert(peer).second) {
            return fmt::format(
                "ranks wait for each other: {}; all ranks must enqueue the same collectives in the same "
                "order",
                story);
        }
    }
}

std::optional<PeerWatch::Control> PeerWatch::query(int peer) {
    std::unique_lock lock(mutex_);
    answers_.erase(peer);
    lock.unlock();
    post(peer, Kind::question, 0, {});
    lock.lock();
    Silence silence(clock_);
    while (!answers_.contains(peer) && !ended_ && !silence.exceeds(kAnswer))
        answered_.wait_for(lock, kPeriod);
    if (ended_) throw Error(*ended_);  // another rank found the cause first
    const auto found = answers_.find(peer);
    if (found == answers_.end()) return std::nullopt;
    return found->second;
}

void PeerWatch::end_all(ExitCode code, const std::string& reason) {
    {
        std::lock_guard lock(mutex_);
        if (ended_) return;
        ended_ = Error(code, reason);
    }
    ending_ = true;
    answered_.notify_all();
    for (int rank = 0; rank < transport_.size(); ++rank) {
        if (rank != transport_.rank()) post(rank, Kind::end, static_cast<int>(code), reason);
    }
    std::unique_lock lock(mutex_);
    answered_.wait_for(lock, kSend, [&] { return num_unsent_ == 0; });
}

std::optional<Error> PeerWatch::ended() const {
    std::lock_guard lock(mutex_);
    return ended_;
}

void PeerWatch::throw_if_ended() const {
    if (ending_) throw Error(*ended());
}

void PeerWatch::post(int peer, Kind kind, int value, const std::string& text) {
    Control control{kind, value, {}};
    std::memcpy(control.text, text.data(), std::min(text.size(), sizeof control.text - 1));
    std::lock_guard lock(mutex_);
    outbox_.emplace_back(peer, control);
    ++num_unsent_;
}

void PeerWatch::flush() {
    std::unique_lock lock(mutex_);
    std::deque<std::pair<int, Control>> outbox;
    outbox.swap(outbox_);
    lock.unlock();
    for (const auto& [peer, control] : outbox) {
        Outgoing& outgoing = outgoing_.emplace_back(Outgoing{control, channel_->start(kControlTag)});
        outgoing.messages->send(peer, &outgoing.control, sizeof outgoing.control);
    }
    const auto sent = outgoing_.remove_if([](Outgoing& outgoing) { return outgoing.messages->test(); });
    lock.lock();
    num_unsent_ -= static_cast<int64_t>(sent);
    if (sent > 0) answered_.notify_all();
}

void PeerWatch::handle(int from, const Control& control) {
    std::unique_lock lock(mutex_);
    if (control.kind == Kind::question) {
        const std::optional<Wait> oldest = waits_.empty() ? std::nullopt : std::optional(waits_.front());
        lock.unlock();
        if (oldest) {
            post(from, Kind::waits, oldest->peer, oldest->what);
        } else {
            post(from, Kind::waits_not, 0, {});
        }
        return;
    }
    if (control.kind == Kind::end) {
        if (!ended_) ended_ = Error(static_cast<ExitCode>(control.value), control.text);
        ending_ = true;
    } else {
        answers_[from] = control;
    }
    answered_.notify_all();
}

void PeerWatch::run() {
    std::optional<Silence> end;
    int64_t num_pauses = 0;
    try {
        while (!stop_) {
            const RunningClock::Reading now = clock_.read();
            if (now.num_pauses != num_pauses && now.pause_s > timeout_s_)
                std::fprintf(
                    stderr,
                    "note: rank %d was stopped or suspended for %.0f s; it waits afresh for the others\n",
                    transport_.rank(), now.pause_s);
            num_pauses = now.num_pauses;
            Control control{};
            for (int from = 0; (from = channel_->try_receive(kControlTag, &control, sizeof control)) >= 0;)
                handle(from, control);
            flush();
            if (ending_ && !end) end.emplace(clock_);
            if (end && armed_ && end->exceeds(kUnwind)) {
                const Error error = *ended();
                std::fprintf(stderr, "error: rank %d: %s\n", transport_.rank(), error.what());
                transport_.kill_all(static_cast<int>(error.code()));
            }
            std::this_thread::sleep_for(kPeriod);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: rank %d: %s\n", transport_.rank(), error.what());
        transport_.kill_all(static_cast<int>(ExitCode::communication));
    }
}

}  // namespace speedrun
