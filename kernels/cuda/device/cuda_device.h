// A CUDA GPU as a device, with CUDA streams and events. One GPU per process. All calls come from the thread
// that created the device, except host work of a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/device/cupti_trace.h"

namespace speedrun {

class CudaDevice;

class CudaEvent final : public Event {
  public:
    CudaEvent(bool dry, EventKind kind);
    ~CudaEvent() override;
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    bool complete() const override;
    void synchronize() override;

    cudaEvent_t handle() const { return event_; }

  private:
    double measured_ms_since(const Event& start) const override;

    friend class CudaStream;
    cudaEvent_t event_ = nullptr;  // null on a dry device
    bool recorded_ = false;
};

class CudaStream final : public Stream {
  public:
    CudaStream(std::string name, StreamPriority priority, CudaDevice& device);
    ~CudaStream() override;
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    const std::string& name() const override { return name_; }
    void record(Event& event) override;
    void wait(const Event& event) override;
    void synchronize() override;

    // Enqueues a host function that may block and may throw (for example an MPI collective); later work of
    // the stream waits for it. Each stream has its own thread for host functions. CUDA may run those of all
    // streams on one thread (cudaLaunchHostFunc), where two collectives that wait for each other would
    // deadlock. The function must not call CUDA. After one throws, later ones are skipped until synchronize()
    // rethrows the error.
    void submit(const char* label, std::function<void()> work);

    cudaStream_t handle() const { return stream_; }
    CudaDevice& device() const { return device_; }
    bool dry() const;
    bool capturing() const { return capturing_; }

    // Frame the enqueueing of work named `label`. Cost one branch unless the timeline uses event pairs.
    void begin_span(const char* label);
    void end_span();

  private:
    struct Span {
        const char* label;
        std::unique_ptr<CudaEvent> begin, end;
        int tag;
    };
    void report_spans();  // completed spans; call after a synchronize
    void run_host_work(const std::function<void()>& work) noexcept;

    friend class CudaDevice;  // records events of this stream
    const std::string name_;
    CudaDevice& device_;
    cudaStream_t stream_ = nullptr;
    bool capturing_ = false;  // work is captured into a graph
    std::vector<Span> spans_;

    // Host work, numbered by tickets. In pinned memory: `done_`, the last completed ticket, which the GPU
    // waits for, and `started_`, the last ticket that may begin, which the GPU writes.
    std::unique_ptr<CpuStream> host_;
    uint32_t *done_ = nullptr, *started_ = nullptr;
    uint32_t tickets_ = 0;
    std::atomic<bool> abandoned_ = false;  // the GPU has failed
    std::mutex mutex_;
    std::exception_ptr error_;  // guarded by mutex_
};

class CudaDevice final : public Device {
  public:
    // Throws a usage error if the GPU does not exist. A dry device needs no GPU and makes no CUDA call.
    explicit CudaDevice(int index = 0, bool dry = false);
    ~CudaDevice() override;

    DeviceKind kind() const override { return DeviceKind::cuda; }
    void copy(void* destination, const void* source, int64_t bytes, Stream& stream) override;
    bool dry() const override { return dry_; }
    // With CUPTI every kernel and copy is a span, inside graphs too, reported when the trace ends. Without
    // CUPTI spans are operations, measured with event pairs and reported when their stream is synchronized.
    // Host work is timed on the host in either case.
    void set_trace(TraceSink* sink) override;
    std::string trace_limits() const override { return trace_limits_; }
    int64_t available_bytes() const override;

    // A captured stream waits for events of other streams. The first call tests whether graphs of this driver
    // do so; the test takes milliseconds. If they do not, nothing is recorded and a note says so.
    bool begin_graph(Stream& stream) override;
    std::unique_ptr<Graph> end_graph(Stream& stream) override;
    std::vector<std::string> notes() const override;

    int index() const { return index_; }
    // Maximum dynamic shared memory of a block, in bytes; on a dry device the value of an H100.
    int64_t max_shared_memory() const { return max_shared_memory_; }
    int64_t multiprocessors() const { return multiprocessors_; }  // on a dry device those of an H100
    // Later launches may begin while the kernel before them in their stream ends; compute capability 9.0 and
    // above.
    void enable_dependent_launch(bool allowed) { dependent_launch_enabled_ = allowed; }
    bool dependent_launch_enabled() const { return dependent_launch_enabled_; }
    TraceSink* trace() const { return trace_; }
    bool times_operations() const { return trace_ && !activities_; }
    ActivityTrace* activities() const { return activities_.get(); }
    CpuDevice& host() { return host_; }
    // Completion time of the event, in nanoseconds of the host's steady clock.
    int64_t host_time_ns(const CudaEvent& event) const;

  private:
    std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) override;
    std::unique_ptr<Event> make_event(EventKind kind) override {
        return std::make_unique<CudaEvent>(dry_, kind);
    }
    void* allocate(int64_t bytes) override;
    void release(void* data, int64_t bytes) noexcept override;
    void* allocate_host(int64_t bytes) override;
    void release_host(void* data) noexcept override;

    friend class CudaStream;  // adds itself to streams_

    const int index_;
    const bool dry_;
    int max_shared_memory_ = 227 << 10, multiprocessors_ = 132;
    bool dependent_launch_enabled_ = false;
    std::optional<std::string> graph_fault_;  // empty: graphs work; nullopt: not tested yet
    // Freeing waits for all streams of the process. If ranks are threads, such a stream may wait for us. Then
    // released memory is kept until the device is destroyed.
    static std::atomic<int> num_devices_;
    std::vector<void*> released_, released_host_;
    std::vector<CudaStream*> streams_;
    TraceSink* trace_ = nullptr;
    std::unique_ptr<ActivityTrace> activities_;  // set while CUPTI records
    std::string trace_limits_;
    CpuDevice host_;                     // runs the streams' host work
    std::unique_ptr<CudaEvent> origin_;  // reference event of traces,
    int64_t origin_ns_ = 0;              // and its host time
};

}  // namespace speedrun
