// NcclWatch: ends the run when a collective of NCCL fails or does not complete. Otherwise a lost peer blocks the stream, and
// the host blocks on the stream.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/device.h"
#include "train/comm/nccl_api.h"
#include "train/comm/running_clock.h"

namespace speedrun {

class NcclWatch {
  public:
    // on_lost: called once, from the watch's thread, with the reason; afterwards all communicators are aborted. If the host
    // does not leave its call of NCCL, the process ends with exit code 5 instead.
    NcclWatch(const NcclApi& api, Device& device, double timeout_s,
              std::function<void(const std::string&)> on_lost);
    ~NcclWatch();
    NcclWatch(const NcclWatch&) = delete;
    NcclWatch& operator=(const NcclWatch&) = delete;

    // Watches the communicator until remove(), which returns false if it has been aborted and is invalid. blame: called on the
    // watch's thread, names the ranks of the group that are missing; empty: none.
    void add(ncclComm_t comm, const std::string& name, std::function<std::string()> blame);
    [[nodiscard]] bool remove(ncclComm_t comm);

    // Called before and after enqueuing a collective. The timeout runs while the host is between the two calls, and on the
    // stream from the time when the collective is next.
    void begin(ncclComm_t comm, const std::string& what, Stream& stream);
    void end(ncclComm_t comm, Stream& stream);

    // Held by the host while it is inside a call of NCCL: a communicator must not be aborted during a call (NCCL user guide,
    // "Fault Tolerance").
    [[nodiscard]] std::unique_lock<std::timed_mutex> call() { return std::unique_lock(calls_); }

    // Throws the reason, exit code 5, after a loss.
    void throw_if_lost() const;

  private:
    struct Collective {
        std::string what;
        std::unique_ptr<Event> next, done;  // on the stream
        bool enqueued = false;
        std::optional<Silence> since;  // start of its timeout
    };
    struct Watched {
        ncclComm_t comm;
        std::string name;
        std::function<std::string()> blame;
        std::deque<Collective> under_way;  // oldest first
    };

    void run();
    std::string look(Watched& watched);  // returns the error; empty: none
    std::string late(Watched& watched);  // returns the timeout error; empty: none
    Watched& find(ncclComm_t comm);
    std::unique_ptr<Event> event();

    const NcclApi& api_;
    Device& device_;
    const double timeout_s_;
    RunningClock clock_;
    const std::function<void(const std::string&)> on_lost_;
    std::timed_mutex calls_;
    mutable std::mutex mutex_;  // guards the members below
    std::condition_variable changed_;
    bool stop_ = false, blaming_ = false;
    std::string lost_;
    std::list<Watched> watched_;
    std::vector<std::unique_ptr<Event>> spare_;
    std::thread thread_;  // last: starts once all other members are initialised
};

}  // namespace speedrun
