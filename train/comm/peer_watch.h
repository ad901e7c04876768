// PeerWatch: waits for messages and identifies the rank that caused a timeout.
//
// A wait without progress for the timeout ends the run; time in which this rank itself was stopped does not count. To find the
// responsible rank, the waiting rank asks the sender of its message for which rank the sender waits. It follows these
// answers. A rank that waits for none hangs outside of communication. A rank without an answer is dead or stopped. A cycle
// means that collectives were enqueued in different orders. All ranks are then notified, and their waits throw the same reason.
// The watch ends a rank that does not exit by itself.
//
// A thread per rank answers, on a channel of its own. No message is sent without a timeout.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/error.h"
#include "train/comm/message_channel.h"
#include "train/comm/running_clock.h"

namespace speedrun {

class PeerWatch {
  public:
    // Starts the thread. Collective over all ranks: opens a channel.
    PeerWatch(MessageTransport& transport, double timeout_s);
    ~PeerWatch();
    PeerWatch(const PeerWatch&) = delete;
    PeerWatch& operator=(const PeerWatch&) = delete;

    // Sets the host of every rank, for messages: with several hosts, ranks are named with theirs. Call it before other threads
    // wait.
    void set_hosts(std::vector<std::string> hosts);

    // Waits until all messages are complete; any thread. `what` names the collective. Throws exit code 5 when a peer is lost,
    // or the reason given by a rank that ended the run.
    void wait(PendingMessages& messages, const std::string& what);
    // Notifies all ranks to end. The first reason is used, on this rank and on the others. Returns when the messages are sent,
    // or after a short timeout.
    void end_all(ExitCode code, const std::string& reason);
    // Returns the reason passed to end_all on any rank, if any.
    std::optional<Error> ended() const;
    // Called before a regular exit: the watch no longer ends this rank.
    void disarm() { armed_ = false; }

  private:
    enum class Kind : int32_t { question, waits, waits_not, end };
    struct Control {
        Kind kind;
        int32_t value;  // waits: the awaited rank; end: the exit code
        char text[1016];
    };
    struct Wait {
        std::string what;
        int peer;
    };
    class ListedWait;
    struct Outgoing {
        Control control;
        std::unique_ptr<PendingMessages> messages;
    };

    void run();
    void handle(int from, const Control& control);
    void post(int peer, Kind kind, int value, const std::string& text);
    void flush();
    [[noreturn]] void give_up(int peer, const std::string& what);
    std::string blame(int peer, const std::string& what);
    std::string name(int rank) const;  // "rank 3", "rank 3 on node1"
    std::optional<Control> query(int peer);
    void throw_if_ended() const;

    MessageTransport& transport_;
    const double timeout_s_;
    RunningClock clock_;
    std::vector<std::string> hosts_;  // index: rank; empty: one host
    const std::unique_ptr<MessageChannel> channel_;
    std::atomic<bool> ending_ = false, armed_ = true, stop_ = false;

    mutable std::mutex mutex_;  // guards the members below
    std::condition_variable answered_;
    std::list<Wait> waits_;           // waits of this rank's threads, oldest first
    std::map<int, Control> answers_;  // key: rank
    std::deque<std::pair<int, Control>> outbox_;
    int64_t num_unsent_ = 0;  // posted, not yet complete
    std::optional<Error> ended_;

    std::list<Outgoing> outgoing_;  // used by the thread only
    std::thread thread_;            // last: starts once all other members are initialised
};

}  // namespace speedrun
