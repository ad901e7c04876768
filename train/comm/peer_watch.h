// PeerWatch: waits for messages, and finds out who is to blame when they do not come.
//
// A wait that makes no progress for the timeout ends the run; time in which this rank itself was stopped does not count. To name
// the right rank, the waiting one asks the sender of its message for the rank that the sender waits for, and follows the answers.
// A rank that waits for none hangs outside of communication; one whose watch does not answer is dead or stopped; a circle is
// collectives enqueued in different orders. Then all ranks are told, their waits throw the same reason, and a rank that does not
// end by itself is ended by its watch.
//
// The answering is done by a thread per rank on a channel of its own. Nothing is sent while all goes well.
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

    // The host of every rank, for messages: where there are several, ranks are named with theirs. Before other threads wait.
    void set_hosts(std::vector<std::string> hosts);

    // Until all messages are there; any thread. `what` names the collective. Throws exit code 5 when a peer
    // is lost, and the reason of whoever ended the run.
    void wait(PendingMessages& messages, const std::string& what);
    // Tells all ranks to end. The first reason counts, here and there. Returns when the messages are out, or
    // a moment later.
    void end_all(ExitCode code, const std::string& reason);
    // The reason given to or by end_all, if any.
    std::optional<Error> ended() const;
    // This rank is about to leave in order: its watch must not end it any more.
    void disarm() { armed_ = false; }

  private:
    enum class Kind : int32_t { question, waits, waits_not, end };
    struct Control {
        Kind kind;
        int32_t value;  // waits: for which rank; end: the exit code
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
    std::optional<Control> ask(int peer);
    void throw_if_ended() const;

    MessageTransport& transport_;
    const double timeout_s_;
    RunningClock clock_;
    std::vector<std::string> hosts_;  // by rank; empty: one host
    const std::unique_ptr<MessageChannel> channel_;
    std::atomic<bool> ending_ = false, armed_ = true, stop_ = false;

    mutable std::mutex mutex_;  // guards all below
    std::condition_variable answered_;
    std::list<Wait> waits_;           // of this rank's threads, oldest first
    std::map<int, Control> answers_;  // by rank
    std::deque<std::pair<int, Control>> outbox_;
    int64_t num_unsent_ = 0;  // posted, not yet complete
    std::optional<Error> ended_;

    std::list<Outgoing> outgoing_;  // of the thread alone
    std::thread thread_;            // last: starts when all else is ready
};

}  // namespace speedrun
