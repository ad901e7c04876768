// Device, Stream, Event, Buffer: what every backend offers, and all that the layers above may use to order
// work.
//
// All work is enqueued on a Stream and runs there in order. Order between streams comes only from Events, on
// every backend: on CUDA they are cudaStream/cudaEvent, on the CPU a worker thread with a queue and a
// completion flag. A missing wait is therefore a data race that ThreadSanitizer reports on a machine without
// a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/memory_table.h"
#include "kernels/device/tensor.h"

namespace speedrun {

class Device;

enum class DeviceKind : uint8_t { cpu, cuda };
// Which of two streams with work the device serves first. A CPU makes no difference.
enum class StreamPriority : uint8_t { normal, high };

// What an event is for. On a GPU a time stamp costs each record a little, so only those whose times are read
// have one.
enum class EventKind : uint8_t { order, timed };

// A point in a stream's work. Semantics of cudaEvent: waiting on an event that was never recorded is no wait,
// and a wait refers to the latest record() that was enqueued before it. Host calls come from one thread.
class Event {
  public:
    explicit Event(EventKind kind) : kind_(kind) {}
    virtual ~Event() = default;
    virtual bool complete() const = 0;  // true too when never recorded
    virtual void synchronize() = 0;     // blocks the calling thread
    // Milliseconds between two completed events; 0 if one of them was never recorded. Throws an internal
    // error unless both are timed.
    double elapsed_ms_since(const Event& start) const {
        if (!timed() || !start.timed())
            throw_internal("a time was asked of an event that was made with EventKind::order");
        return measured_ms_since(start);
    }
    bool timed() const { return kind_ == EventKind::timed; }

  private:
    virtual double measured_ms_since(const Event& start) const = 0;

    const EventKind kind_;
};

class Stream {
  public:
    virtual ~Stream() = default;
    virtual const std::string& name() const = 0;
    virtual void record(Event& event) = 0;
    virtual void wait(const Event& event) = 0;
    // Blocks until all work enqueued so far is done; rethrows the first error that the work met.
    virtual void synchronize() = 0;

    // What traces are told of the work enqueued from here on: a number that the trace's reader gave out.
    void set_trace_tag(int tag) { trace_tag_ = tag; }
    int trace_tag() const { return trace_tag_; }

  private:
    int trace_tag_ = 0;
};

// Receives one span for every piece of work that a stream ran; called from the stream's own thread. `tag`:
// the stream's trace_tag() when the work was enqueued; 0: none.
class TraceSink {
  public:
    virtual ~TraceSink() = default;
    virtual void span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns,
                      int tag = 0) = 0;
};

// Named, aligned, zero-initialised memory of a device; enters itself in the device's memory table.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Device& device, std::string name, MemoryCategory category, int64_t bytes);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();

    void* data() const { return data_; }
    int64_t bytes() const { return bytes_; }
    Tensor tensor(DType dtype, std::initializer_list<int64_t> dims, int64_t byte_offset = 0) const;

  private:
    void release() noexcept;

    Device* device_ = nullptr;
    std::string name_;
    MemoryCategory category_ = MemoryCategory::workspace;
    int64_t bytes_ = 0;
    void* data_ = nullptr;
};

// Zero-initialised host memory that a device copies from and to without a detour and without making the host
// wait (pinned, on CUDA). Not entered in the memory table: it is not the device's.
class HostBuffer {
  public:
    HostBuffer() = default;
    HostBuffer(Device& device, int64_t bytes);
    HostBuffer(HostBuffer&& other) noexcept;
    HostBuffer& operator=(HostBuffer&& other) noexcept;
    ~HostBuffer();

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    int64_t bytes() const { return bytes_; }

  private:
    Device* device_ = nullptr;
    int64_t bytes_ = 0;
    void* data_ = nullptr;
};

// Work captured once and launched many times with one call: a CUDA graph.
class Graph {
  public:
    virtual ~Graph() = default;
    virtual void launch(Stream& stream) = 0;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual DeviceKind kind() const = 0;
    // The name is for traces.
    std::unique_ptr<Stream> create_stream(const std::string& name,
                                          StreamPriority priority = StreamPriority::normal) {
        return make_stream(name, priority);
    }
    std::unique_ptr<Event> create_event(EventKind kind = EventKind::order) { return make_event(kind); }
    // Enqueues a copy between host and device memory, either way. Host memory must outlive the copy.
    virtual void copy(void* destination, const void* source, int64_t bytes, Stream& stream) = 0;
    // From here to end_graph() what is enqueued on `stream` is captured instead of executed. What is enqueued
    // on other streams is executed at once and is not captured; events of `stream` keep their meaning towards
    // other streams at every launch, and its waits are for the records that were enqueued before the launch.
    // The pointers and numbers given to operations are captured as they are. False, and nothing begins, where
    // the device captures nothing (dry, or no such thing).
    virtual bool begin_graph(Stream& stream) {
        (void)stream;
        return false;
    }
    virtual std::unique_ptr<Graph> end_graph(Stream& stream);
    // All that `body` enqueues on `stream`. Null, without having run body, where the device captures nothing.
    // What body throws ends the capture and is thrown on.
    std::unique_ptr<Graph> capture_graph(Stream& stream, const std::function<void()>& body);
    // A dry device takes part in everything but allocates and runs nothing: `plan` is a run on a dry device.
    // Its buffers have addresses all the same, distinct ones that no process can touch: whoever compares two
    // tensors learns what a run would tell him.
    virtual bool dry() const = 0;
    // From true to false, work is counted and memory allocated, but nothing runs: so a step is known before
    // the first one, at no cost. The last call brings in the memory that was allocated. A device that has
    // something to warm up (a GPU, its libraries) runs everything all the same.
    virtual void rehearse(bool on) { (void)on; }
    virtual void set_trace(TraceSink* sink) = 0;
    // What the timeline cannot show, one sentence: of the one that set_trace() began (then it needs work
    // enqueued call by call, not by graphs) or of the one that it ended. Empty: it shows everything.
    virtual std::string trace_limits() const { return {}; }
    // What the user should know of this device, one sentence each.
    virtual std::vector<std::string> notes() const { return {}; }
    // Memory that further buffers may take, in bytes; −1 where that is not known (no such device here).
    virtual int64_t available_bytes() const = 0;

    MemoryTable& memory() { return memory_; }

  protected:
    friend class Buffer;
    friend class HostBuffer;
    virtual std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) = 0;
    virtual std::unique_ptr<Event> make_event(EventKind kind) = 0;
    virtual void* allocate(int64_t bytes) = 0;
    virtual void release(void* data, int64_t bytes) noexcept = 0;
    virtual void* allocate_host(int64_t bytes);
    virtual void release_host(void* data) noexcept;

  private:
    void* reserve_addresses(int64_t bytes);

    MemoryTable memory_;
    // Where a dry device puts its next buffer: addresses above all that x86-64 and ARM give to a process.
    uintptr_t next_address_ = uintptr_t{1} << 56;
};

}  // namespace speedrun
