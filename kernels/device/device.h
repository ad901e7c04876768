// Device, Stream, Event, Buffer: the interface of every backend, and the only means by which the layers above
// order work.
//
// Work is enqueued on a Stream and runs there in order. Only Events order work between streams, on every
// backend. On CUDA they are cudaStream/cudaEvent, on the CPU a worker thread with a queue and a completion
// flag. A missing wait is therefore a data race that ThreadSanitizer reports on a machine without a GPU.
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
// Scheduling priority between streams with work. Ignored by the CPU.
enum class StreamPriority : uint8_t { normal, high };

// Purpose of an event. On a GPU a time stamp costs each record a little, so only timed events have one.
enum class EventKind : uint8_t { order, timed };

// A point in a stream's work, with the semantics of cudaEvent. Waiting on an event that was never recorded is
// a no-op. A wait refers to the latest record() enqueued before it. Host calls come from one thread.
class Event {
  public:
    explicit Event(EventKind kind) : kind_(kind) {}
    virtual ~Event() = default;
    virtual bool complete() const = 0;  // also true if never recorded
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
    // Blocks until all work enqueued so far is done. Rethrows the first error of that work.
    virtual void synchronize() = 0;

    // Tag in traces of the work enqueued later, chosen by the reader of the trace.
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

// Named, aligned, zero-initialized memory of a device; enters itself in the device's memory table.
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

// Zero-initialized host memory for direct asynchronous copies (pinned, on CUDA). Not entered in the memory
// table, as it is not device memory.
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
    // name: for traces.
    std::unique_ptr<Stream> create_stream(const std::string& name,
                                          StreamPriority priority = StreamPriority::normal) {
        return make_stream(name, priority);
    }
    std::unique_ptr<Event> create_event(EventKind kind = EventKind::order) { return make_event(kind); }
    // Enqueues a copy between host and device memory, in either direction. Host memory must outlive the copy.
    virtual void copy(void* destination, const void* source, int64_t bytes, Stream& stream) = 0;
    // Captures later work on `stream` until end_graph() instead of executing it. Work on other streams is
    // executed and not captured. At every launch, other streams can wait for the captured records of
    // `stream`. Captured waits refer to the records enqueued before the launch. Pointers and numbers passed
    // to operations are captured by value. Returns false, and captures nothing, if the device cannot capture
    // (dry, or unsupported).
    virtual bool begin_graph(Stream& stream) {
        (void)stream;
        return false;
    }
    virtual std::unique_ptr<Graph> end_graph(Stream& stream);
    // Captures the work that `body` enqueues on `stream`. Null, without running body, if the device cannot
    // capture. An exception of body ends the capture and is rethrown.
    std::unique_ptr<Graph> capture_graph(Stream& stream, const std::function<void()>& body);
    // A dry device implements everything but allocates and runs nothing: `plan` is a run on a dry device. Its
    // buffers have distinct addresses that no process can access, so that comparing tensors gives the result
    // of a run.
    virtual bool dry() const = 0;
    // set_dry_run(true) starts a dry run until set_dry_run(false): work is counted and memory allocated, but
    // nothing runs. So the cost of a step is known before the first one. The last call touches the allocated
    // memory. A device that must warm up (a GPU, its libraries) runs everything anyway.
    virtual void set_dry_run(bool on) { (void)on; }
    virtual void set_trace(TraceSink* sink) = 0;
    // Limits of the timeline, one sentence. Refers to the one that set_trace() began (then it needs work
    // enqueued call by call, not by graphs) or ended. Empty: complete.
    virtual std::string trace_limits() const { return {}; }
    // Notes on this device for the user, one sentence each.
    virtual std::vector<std::string> notes() const { return {}; }
    // Memory available for further buffers, in bytes; −1 if unknown (no such device here).
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
    // Address of a dry device's next buffer: above all addresses of processes on x86-64 and ARM.
    uintptr_t next_address_ = uintptr_t{1} << 56;
};

}  // namespace speedrun
