#include "kernels/cuda/device/cuda_device.h"

#include <cuda.h>

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_info.h"
#include "kernels/cuda/device/driver_function.h"
#include "kernels/cuda/device/graph_waits.h"

namespace speedrun {

using cuda::check;

namespace {

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// A stream writes a word in pinned memory, or waits until it has reached a value.
using StreamValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

void enqueue_write(cudaStream_t stream, uint32_t* word, uint32_t value) {
    static const StreamValue write = driver_function<StreamValue>("cuStreamWriteValue32");
    const CUresult result =
        write(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (result != CUDA_SUCCESS) throw_internal("cuStreamWriteValue32: error {}", static_cast<int>(result));
}

void enqueue_wait(cudaStream_t stream, uint32_t* word, uint32_t value) {
    static const StreamValue wait = driver_function<StreamValue>("cuStreamWaitValue32");
    const CUresult result =
        wait(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ);
    if (result != CUDA_SUCCESS) throw_internal("cuStreamWaitValue32: error {}", static_cast<int>(result));
}

// Host thread waits for a word that a stream writes. Must not call CUDA: a call may wait for a thread that
// frees memory or loads a kernel. That thread waits for all streams, and this stream waits for us.
void wait_for(uint32_t& word, uint32_t value) {
    constexpr int kSpins = 200;
    constexpr std::chrono::microseconds kPollInterval(20);
    for (int i = 0; static_cast<int32_t>(std::atomic_ref(word).load(std::memory_order_acquire) - value) < 0;
         ++i) {
        if (i > kSpins) std::this_thread::sleep_for(kPollInterval);
    }
}

}  // namespace

CudaEvent::CudaEvent(bool dry, EventKind kind) : Event(kind) {
    if (dry) return;
    check(cudaEventCreateWithFlags(&event_, timed() ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreate");
}

CudaEvent::~CudaEvent() {
    if (event_) cudaEventDestroy(event_);  // the driver keeps the resources of pending waits
}

bool CudaEvent::complete() const {
    if (!event_ || !recorded_) return true;
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "cudaEventQuery");
    return true;
}

void CudaEvent::synchronize() {
    if (event_ && recorded_) check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

double CudaEvent::measured_ms_since(const Event& start) const {
    const auto& first = static_cast<const CudaEvent&>(start);
    if (!event_ || !recorded_ || !first.recorded_) return 0.0;
    float ms = 0.0f;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&ms, first.event_, event_), "cudaEventElapsedTime");
    return ms;
}

CudaStream::CudaStream(std::string name, StreamPriority priority, CudaDevice& device)
    : name_(std::move(name)), device_(device) {
    if (device_.dry()) return;
    int lowest = 0, highest = 0;  // numerically the largest and the smallest value
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == StreamPriority::high ? highest : lowest),
          "cudaStreamCreateWithPriority");
    device_.streams_.push_back(this);
}

CudaStream::~CudaStream() {
    if (!stream_) return;
    std::erase(device_.streams_, this);
    if (cudaStreamSynchronize(stream_) != cudaSuccess && host_) {  // the stream will not write any more
        abandoned_ = true;
        std::atomic_ref(*started_).store(tickets_, std::memory_order_release);
    }
    host_.reset();
    cudaStreamDestroy(stream_);
    if (done_) device_.release_host(done_);
}

bool CudaStream::dry() const {
    return device_.dry();
}

void CudaStream::record(Event& event) {
    auto& cuda_event = static_cast<CudaEvent&>(event);
    if (!stream_) return;
    // External: each launch of the graph records the event again, for other streams to wait for.
    check(cudaEventRecordWithFlags(cuda_event.event_, stream_,
                                   capturing_ ? cudaEventRecordExternal : cudaEventRecordDefault),
          "cudaEventRecord");
    cuda_event.recorded_ = true;
}

void CudaStream::wait(const Event& event) {
    const auto& cuda_event = static_cast<const CudaEvent&>(event);
    if (!stream_ || !cuda_event.recorded_) return;
    check(cudaStreamWaitEvent(stream_, cuda_event.event_,
                              capturing_ ? cudaEventWaitExternal : cudaEventWaitDefault),
          "cudaStreamWaitEvent");
}

void CudaStream::synchronize() {
    if (!stream_) return;
    if (capturing_) throw_internal("stream {} cannot be waited for while a graph captures it", name_);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    if (!spans_.empty()) report_spans();
    std::exception_ptr error;
    {
        std::lock_guard lock(mutex_);
        error = std::exchange(error_, nullptr);
    }
    if (error) std::rethrow_exception(error);
}

void CudaStream::submit(const char* label, std::function<void()> work) {
    if (!stream_) return;
    if (capturing_) throw_internal("stream {}: host work '{}' cannot be captured in a graph", name_, label);
    if (!host_) {
        void* word = nullptr;
        check(cudaHostAlloc(&word, 2 * sizeof *done_, cudaHostAllocMapped), "cudaHostAlloc");
        done_ = static_cast<uint32_t*>(word);
        started_ = done_ + 1;
        *done_ = *started_ = 0;
        host_ = std::make_unique<CpuStream>(name_ + " host", device_.host());
    }
    const uint32_t ticket = ++tickets_;
    enqueue_write(stream_, started_, ticket);
    host_->submit(label, [this, label, ticket, work = std::move(work)] {
        run_host_work([&] {
            wait_for(*started_, ticket);
            if (abandoned_) return;
            const int64_t begin = now_ns();
            work();
            if (TraceSink* const sink = device_.trace()) sink->span(name_, label, begin, now_ns());
        });
        std::atomic_ref(*done_).store(ticket, std::memory_order_release);
    });
    enqueue_wait(stream_, done_, ticket);
}

void CudaStream::run_host_work(const std::function<void()>& work) noexcept {
    {
        std::lock_guard lock(mutex_);
        if (error_) return;
    }
    try {
        work();
    } catch (...) {
        std::lock_guard lock(mutex_);
        error_ = std::current_exception();
    }
}

void CudaStream::begin_span(const char* label) {
    if (!device_.times_operations() || !stream_) return;
    spans_.push_back({label, std::make_unique<CudaEvent>(false, EventKind::timed),
                      std::make_unique<CudaEvent>(false, EventKind::timed), trace_tag()});
    record(*spans_.back().begin);
}

void CudaStream::end_span() {
    if (!device_.times_operations() || !stream_ || spans_.empty()) return;
    record(*spans_.back().end);
}

void CudaStream::report_spans() {
    TraceSink* const sink = device_.trace();
    for (const Span& span : spans_) {
        if (sink)
            sink->span(name_, span.label, device_.host_time_ns(*span.begin), device_.host_time_ns(*span.end),
                       span.tag);
    }
    spans_.clear();
}

CudaDevice::CudaDevice(int index, bool dry) : index_(index), dry_(dry), host_(1) {
    if (dry_) return;
    const CudaInfo info = query_cuda();
    if (!info.unavailable.empty()) throw_usage("device: 'cuda' cannot be used: {}", info.unavailable);
    if (index < 0 || index >= static_cast<int>(info.gpus.size())) {
        throw_usage("device: GPU {} was asked for, but there are {} (counted from 0)", index,
                    info.gpus.size());
    }
    check(cudaSetDevice(index), "cudaSetDevice");
    check(cudaDeviceGetAttribute(&max_shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
          "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index),
          "cudaDeviceGetAttribute");
    ++num_devices_;
}

std::atomic<int> CudaDevice::num_devices_ = 0;

CudaDevice::~CudaDevice() {
    if (dry_) return;
    --num_devices_;
    for (void* data : released_) cudaFree(data);
    for (void* data : released_host_) cudaFreeHost(data);
}

std::unique_ptr<Stream> CudaDevice::make_stream(const std::string& name, StreamPriority priority) {
    return std::make_unique<CudaStream>(name, priority, *this);
}

void CudaDevice::copy(void* destination, const void* source, int64_t bytes, Stream& stream) {
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    if (dry_ || bytes == 0) return;
    cuda_stream.begin_span("copy");
    check(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), cudaMemcpyDefault,
                          cuda_stream.handle()),
          "cudaMemcpyAsync");
    cuda_stream.end_span();
}

void CudaDevice::set_trace(TraceSink* sink) {
    trace_limits_.clear();
    if (activities_) {
        ActivityTrace::NamedStreams streams;
        for (const CudaStream* stream : streams_) streams.emplace_back(stream->name(), stream->handle());
        trace_limits_ = activities_->stop(streams, *trace_);
        activities_.reset();
    }
    trace_ = sink;
    if (!sink || dry_) return;
    std::string why;
    activities_ = start_cupti(why);
    if (activities_) return;
    trace_limits_ = fmt::format(
        "CUPTI cannot be used ({}): the timeline is made of event pairs around each operation, without CUDA "
        "graphs",
        why);
    if (!origin_) origin_ = std::make_unique<CudaEvent>(false, EventKind::timed);
    CudaStream stream("trace", StreamPriority::normal, *this);
    stream.record(*origin_);
    origin_->synchronize();
    origin_ns_ = now_ns();
}

int64_t CudaDevice::available_bytes() const {
    if (!query_cuda().unavailable.empty()) return -1;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
}

int64_t CudaDevice::host_time_ns(const CudaEvent& event) const {
    return origin_ns_ + static_cast<int64_t>(event.elapsed_ms_since(*origin_) * 1e6);
}

namespace {

class CudaGraph final : public Graph {
  public:
    // Uploads the graph as well: otherwise its first launch does so, inside the timed run.
    CudaGraph(cudaGraph_t graph, cudaStream_t stream) {
        const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
        cudaGraphDestroy(graph);
        check(error, "cudaGraphInstantiate");
        check(cudaGraphUpload(executable_, stream), "cudaGraphUpload");
    }
    ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
    void launch(Stream& stream) override {
        auto& cuda_stream = static_cast<CudaStream&>(stream);
        if (ActivityTrace* const activities = cuda_stream.device().activities())
            activities->launched(executable_, cuda_stream.name());
        check(cudaGraphLaunch(executable_, cuda_stream.handle()), "cudaGraphLaunch");
    }

  private:
    cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

bool CudaDevice::begin_graph(Stream& stream) {
    if (dry_) return false;
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    if (times_operations())
        throw_internal("a graph cannot be captured while stream {} is traced", stream.name());
    if (!graph_fault_) {
        graph_fault_ = "";  // lets the test capture its graph
        graph_fault_ = find_graph_wait_fault(*this);
    }
    if (!graph_fault_->empty()) return false;
    // Relaxed: other threads (the loader's, a communicator's) may call CUDA meanwhile.
    check(cudaStreamBeginCapture(cuda_stream.handle(), cudaStreamCaptureModeRelaxed),
          "cudaStreamBeginCapture");
    cuda_stream.capturing_ = true;
    return true;
}

std::unique_ptr<Graph> CudaDevice::end_graph(Stream& stream) {
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    cuda_stream.capturing_ = false;
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(cuda_stream.handle(), &graph);
    if (ended != cudaSuccess) {
        if (graph) cudaGraphDestroy(graph);
        cudaGetLastError();
    }
    check(ended, "cudaStreamEndCapture");
    return std::make_unique<CudaGraph>(graph, cuda_stream.handle());
}

std::vector<std::string> CudaDevice::notes() const {
    if (!graph_fault_ || graph_fault_->empty()) return {};
    return {*graph_fault_ + ": steps are enqueued call by call, as with --set cuda.graph=false"};
}

void* CudaDevice::allocate_host(int64_t bytes) {
    if (dry_) return Device::allocate_host(bytes);
    void* data = nullptr;
    check(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault), "cudaHostAlloc");
    return data;
}

void CudaDevice::release_host(void* data) noexcept {
    if (dry_) return Device::release_host(data);
    if (num_devices_ > 1)
        released_host_.push_back(data);
    else
        cudaFreeHost(data);
}

void* CudaDevice::allocate(int64_t bytes) {
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // clears the error
        size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        constexpr double kMiB = 1 << 20;
        throw_usage(
            "out of GPU memory: {:.1f} MiB more do not fit, {:.1f} of {:.1f} MiB are free; lower "
            "batch.microbatch_tokens or the model's size. Held so far:\n{}",
            static_cast<double>(bytes) / kMiB, static_cast<double>(free) / kMiB,
            static_cast<double>(total) / kMiB, memory().print());
    }
    check(error, "cudaMalloc");
    check(cudaMemset(data, 0, static_cast<size_t>(bytes)), "cudaMemset");
    check(cudaStreamSynchronize(cudaStreamLegacy),
          "cudaStreamSynchronize");  // our streams do not wait for the legacy stream
    return data;
}

void CudaDevice::release(void* data, int64_t /*bytes*/) noexcept {
    if (!data) return;
    if (num_devices_ > 1)
        released_.push_back(data);
    else
        cudaFree(data);  // waits for all work of the GPU; errors cannot be handled here
}

}  // namespace speedrun
