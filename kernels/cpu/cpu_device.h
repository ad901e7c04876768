// CPU device: a stream is a worker thread with a queue, an event is a completion flag with a timestamp.
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

// Clock of a device's streams, called by the thread of each stream. Traces and timed events read it, so tests
// can replace the time.
class CpuClock {
  public:
    virtual ~CpuClock() = default;
    virtual int64_t now_ns() = 0;
    // Called when a piece of work has run on the stream.
    virtual void ran(const std::string& /*stream*/, const char* /*label*/) {}
    // Called when the stream has waited for an event that was recorded at that time.
    virtual void waited_for(int64_t /*time_ns*/) {}
};

// Callbacks for the work enqueued on a device's streams, in the order of the host's calls, also when nothing
// runs.
class EnqueueObserver {
  public:
    virtual ~EnqueueObserver() = default;
    virtual void work(const Stream& stream, const char* label) = 0;
    virtual void recorded(const Stream& stream, const Event& event) = 0;
    virtual void waits(const Stream& stream, const Event& event) = 0;  // for the latest record of it
};

// Completion of one record(), shared by the event, the signalling stream and the waiting streams.
struct CpuEventState {
    std::mutex mutex;
    std::condition_variable signalled;
    bool done = false;
    int64_t time_ns = 0;

    void signal(int64_t now_ns);
    int64_t wait();  // returns the time of the record
};

class CpuEvent final : public Event {
  public:
    explicit CpuEvent(EventKind kind) : Event(kind) {}

    bool complete() const override;
    void synchronize() override;

  private:
    double measured_ms_since(const Event& start) const override;

    friend class CpuStream;
    std::shared_ptr<CpuEventState> state_;  // state of the latest record(); null before the first
};

class CpuStream;

// Captured calls to a stream; a launch repeats them.
class CpuGraph final : public Graph {
  public:
    void launch(Stream& stream) override;

  private:
    friend class CpuStream;
    std::vector<std::function<void(CpuStream&)>> calls_;
};

// Runs its tasks in order on its own thread. After a task throws, later tasks are skipped until synchronize()
// rethrows the error. Their events still fire, so that no thread waits for ever.
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

    // Enqueues work. `label` names it in traces; it must have static lifetime.
    void submit(const char* label, std::function<void()> work);

  private:
    friend class CpuDevice;
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
    std::unique_ptr<CpuGraph> capture_;  // destination of enqueued calls during capture
    std::thread thread_;                 // declared last: starts after the other members are initialized
};

class CpuDevice final : public Device {
  public:
    // num_threads: size of the team that all streams share; 0: the machine's number of cores (or
    // OMP_NUM_THREADS).
    explicit CpuDevice(int num_threads = 0, bool dry = false);
    ~CpuDevice() override;

    DeviceKind kind() const override { return DeviceKind::cpu; }
    void copy(void* destination, const void* source, int64_t bytes, Stream& stream) override;
    bool dry() const override { return dry_; }
    // Off by default: CPU calls are so cheap that graphs save no time. Tests use them to compare all bits of
    // a run with graphs and without.
    void allow_graphs(bool allowed) { graphs_allowed_ = allowed; }
    bool begin_graph(Stream& stream) override;
    std::unique_ptr<Graph> end_graph(Stream& stream) override;
    void set_dry_run(bool on) override;
    bool idle() const { return dry_ || dry_run_; }  // work is counted but not run
    void set_trace(TraceSink* sink) override { trace_ = sink; }
    // Call while no work is in flight. Default: the machine's clock. `clock` must outlive the device.
    void set_clock(CpuClock& clock) { clock_ = &clock; }
    CpuClock& clock() const { return *clock_; }
    // Null: no observer. `observer` must outlive the work enqueued meanwhile.
    void observe(EnqueueObserver* observer) { observer_ = observer; }
    EnqueueObserver* observer() const { return observer_; }
    int64_t available_bytes() const override;

    int num_threads() const { return num_threads_; }
    cpu::Team* team() const {
        return team_.get();
    }  // null if there is only one thread, and null if the device is dry
    TraceSink* trace() const { return trace_; }

  private:
    std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) override;
    std::unique_ptr<Event> make_event(EventKind kind) override { return std::make_unique<CpuEvent>(kind); }
    void* allocate(int64_t bytes) override;
    void release(void* data, int64_t bytes) noexcept override;

    const int num_threads_;
    const bool dry_;
    bool graphs_allowed_ = false;
    bool dry_run_ = false;  // read and changed only by the enqueuing thread
    std::map<void*, int64_t> allocated_;
    std::unique_ptr<cpu::Team> team_;
    TraceSink* trace_ = nullptr;  // changed only while no work is in flight
    CpuClock* clock_;             // changed only while no work is in flight
    EnqueueObserver* observer_ = nullptr;
};

}  // namespace speedrun
