// The CPU as a device: streams are worker threads with a queue, events are completion flags with a timestamp.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

class CpuDevice;
namespace cpu {
class Team;
}

// What a device's streams take for the time; asked by their threads, each for its own stream. Traces and
// timed events have it from here, so that tests can let pass what time they like.
class CpuClock {
  public:
    virtual ~CpuClock() = default;
    virtual int64_t now_ns() = 0;
    // A piece of work has run on the stream.
    virtual void ran(const std::string& /*stream*/, const char* /*label*/) {}
    // The stream has waited for an event that was recorded at that time.
    virtual void waited_for(int64_t /*time_ns*/) {}
};

// Is told what is enqueued on a device's streams, in the order of the host's calls and whether or not anything runs.
class EnqueueObserver {
  public:
    virtual ~EnqueueObserver() = default;
    virtual void work(const Stream& stream, const char* label) = 0;
    virtual void recorded(const Stream& stream, const Event& event) = 0;
    virtual void waits(const Stream& stream, const Event& event) = 0;  // for the latest record of it
};

// Completion of one record(): shared by the event, the stream that will signal it and those that wait for it.
struct CpuEventState {
    std::mutex mutex;
    std::condition_variable signalled;
    bool done = false;
    int64_t time_ns = 0;

    void signal(int64_t now_ns);
    int64_t wait();  // the time of the record
};

class CpuEvent final : public Event {
  public:
    explicit CpuEvent(EventKind kind) : Event(kind) {}

    bool complete() const override;
    void synchronize() override;

  private:
    double measured_ms_since(const Event& start) const override;

    friend class CpuStream;
    std::shared_ptr<CpuEventState> state_;  // of the latest record(); null before the first
};

class CpuStream;

// The calls to a stream that were captured; a launch makes them again.
class CpuGraph final : public Graph {
  public:
    void launch(Stream& stream) override;

  private:
    friend class CpuStream;
    std::vector<std::function<void(CpuStream&)>> calls_;
};

// Runs its tasks in order on a thread of its own. After a task has thrown, later tasks are skipped (their
// events still fire, so that nobody waits for ever) until synchronize() has rethrown the error.
class CpuStream final : public Stream {
  public:
    CpuStream(std::string name, CpuDevice& device);
    ~CpuStream() override;
    CpuStream(const CpuStream&) = delete;
    CpuStream& operator=(const CpuStream&) = delete;

    const std::string& name() const override { return name_; }
    void record(Event& event) override;
    void wait(const Event& event) override;
    void synchronize() override;

    // Enqueues work; `label` (a string that lives for ever) names it in traces.
    void submit(const char* label, std::function<void()> work);

  private:
    friend class CpuDevice;  // records
    enum class TaskKind : uint8_t { work, signal, wait, stop };
    struct Task {
        TaskKind kind;
        const char* label;
        std::function<void()> work;
        std::shared_ptr<CpuEventState> event;
        int tag = 0;
    };

    void push(Task task);
    void run();

    const std::string name_;
    CpuDevice& device_;
    std::mutex mutex_;
    std::condition_variable pushed_;
    std::deque<Task> queue_;
    std::exception_ptr error_;           // guarded by mutex_
    std::unique_ptr<CpuGraph> capture_;  // what is enqueued goes there
    std::thread thread_;                 // last: starts when all else is ready
};

class CpuDevice final : public Device {
  public:
    // num_threads: of the team that all streams share; 0 takes the machine's (or OMP_NUM_THREADS).
    explicit CpuDevice(int num_threads = 0, bool dry = false);
    ~CpuDevice() override;

    DeviceKind kind() const override { return DeviceKind::cpu; }
    void copy(void* destination, const void* source, int64_t bytes, Stream& stream) override;
    bool dry() const override { return dry_; }
    // Off unless asked for: calls cost so little here that graphs save nothing. They are for tests, which can
    // compare all bits of a run by graphs with those of one by calls.
    void allow_graphs(bool allowed) { graphs_allowed_ = allowed; }
    bool begin_graph(Stream& stream) override;
    std::unique_ptr<Graph> end_graph(Stream& stream) override;
    void rehearse(bool on) override;
    bool idle() const { return dry_ || rehearsing_; }  // nothing is run
    void set_trace(TraceSink* sink) override { trace_ = sink; }
    // While no work is in flight; the machine's own clock until then. `clock` must outlive the device.
    void set_clock(CpuClock& clock) { clock_ = &clock; }
    CpuClock& clock() const { return *clock_; }
    // Null: nobody. `observer` must outlive what is enqueued meanwhile.
    void observe(EnqueueObserver* observer) { observer_ = observer; }
    EnqueueObserver* observer() const { return observer_; }
    int64_t available_bytes() const override;

    int num_threads() const { return num_threads_; }
    cpu::Team* team() const {
        return team_.get();
    }  // null where there is one thread, or where the device is dry
    TraceSink* trace() const { return trace_; }

  private:
    std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) override;
    std::unique_ptr<Event> make_event(EventKind kind) override { return std::make_unique<CpuEvent>(kind); }
    void* allocate(int64_t bytes) override;
    void release(void* data, int64_t bytes) noexcept override;

    const int num_threads_;
    const bool dry_;
    bool graphs_allowed_ = false;
    bool rehearsing_ = false;  // read and changed by the thread that enqueues
    std::map<void*, int64_t> allocated_;
    std::unique_ptr<cpu::Team> team_;
    TraceSink* trace_ = nullptr;  // changed only while no work is in flight
    CpuClock* clock_;             // likewise
    EnqueueObserver* observer_ = nullptr;
};

}  // namespace speedrun
