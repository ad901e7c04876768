#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/cpu/team.h"
#include "kernels/device/host_limits.h"
#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

class SteadyClock final : public CpuClock {
  public:
    int64_t now_ns() override {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
};
constinit SteadyClock steady_clock;

constexpr int64_t kPage = 4096, kHugePage = 2 << 20;

int64_t mapped_bytes(int64_t bytes) {
    const int64_t unit = bytes >= kHugePage ? kHugePage : kPage;
    return (bytes + unit - 1) / unit * unit;
}

void touch_pages(const void* memory, int64_t begin, int64_t end, int /*member*/) {
    auto* bytes = static_cast<volatile char*>(const_cast<void*>(memory));
    for (int64_t page = begin; page < end; ++page) bytes[page * kPage] = bytes[page * kPage];
}

// AddressSanitizer checks the heap but not mapped pages: with it, buffers are allocated on the heap with
// their exact size.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kCheckedMemory = true;
#else
constexpr bool kCheckedMemory = false;
#endif

void* zeroed_heap(int64_t bytes) {
    constexpr size_t kAlignment = 64;
    void* data = nullptr;
    if (posix_memalign(&data, kAlignment, static_cast<size_t>(bytes)) != 0) return nullptr;
    return std::memset(data, 0, static_cast<size_t>(bytes));
}

void* map_pages(int64_t bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? nullptr : base;
}

// OMP_NUM_THREADS lowers the number of threads.
int default_threads() {
    const int threads = threads_within(host_threads());
    return std::min(threads, omp_num_threads().value_or(threads));
}

}  // namespace

void CpuEventState::signal(int64_t now_ns) {
    {
        std::lock_guard lock(mutex);
        time_ns = now_ns;
        done = true;
    }
    signalled.notify_all();
}

int64_t CpuEventState::wait() {
    std::unique_lock lock(mutex);
    signalled.wait(lock, [this] { return done; });
    return time_ns;
}

bool CpuEvent::complete() const {
    if (!state_) return true;
    std::lock_guard lock(state_->mutex);
    return state_->done;
}

void CpuEvent::synchronize() {
    if (state_) state_->wait();
}

double CpuEvent::measured_ms_since(const Event& start) const {
    const auto& first = static_cast<const CpuEvent&>(start);
    if (!state_ || !first.state_) return 0.0;
    return static_cast<double>(state_->wait() - first.state_->wait()) * 1e-6;
}

CpuStream::CpuStream(std::string name, CpuDevice& device)
    : name_(std::move(name)), device_(device), thread_(start_thread("stream " + name_, [this] { run(); })) {}

CpuStream::~CpuStream() {
    push({TaskKind::stop, "stop", {}, nullptr});
    thread_.join();
}

void CpuStream::push(Task task) {
    {
        std::lock_guard lock(mutex_);
        queue_.push_back(std::move(task));
    }
    pushed_.notify_one();
}

void CpuStream::submit(const char* label, std::function<void()> work) {
    if (capture_) {
        capture_->calls_.emplace_back(
            [label, work = std::move(work)](CpuStream& on) { on.submit(label, work); });
        return;
    }
    if (device_.observer()) device_.observer()->work(*this, label);
    if (device_.idle()) return;
    push({TaskKind::work, label, std::move(work), nullptr, trace_tag()});
}

#ifdef SPEEDRUN_REMOVABLE_WAITS  // fault injection for tests/distributed/missing_waits_test.cpp
bool wait_is_removed(const void* caller);
void inject_delay(CpuStream& stream);
#endif

void CpuStream::record(Event& event) {
    if (capture_) {
        capture_->calls_.emplace_back([&event](CpuStream& on) { on.record(event); });
        return;
    }
    if (device_.observer()) device_.observer()->recorded(*this, event);
    auto state = std::make_shared<CpuEventState>();
    static_cast<CpuEvent&>(event).state_ = state;
    push({TaskKind::signal, "record", {}, std::move(state)});
#ifdef SPEEDRUN_REMOVABLE_WAITS
    inject_delay(*this);
#endif
}

void CpuStream::wait(const Event& event) {
    if (capture_) {
        capture_->calls_.emplace_back([&event](CpuStream& on) { on.wait(event); });
        return;
    }
    const auto& state = static_cast<const CpuEvent&>(event).state_;
#ifdef SPEEDRUN_REMOVABLE_WAITS
    inject_delay(*this);
    if (state && wait_is_removed(__builtin_return_address(0))) return;
#endif
    if (state && device_.observer()) device_.observer()->waits(*this, event);
    if (state) push({TaskKind::wait, "wait", {}, state});
}

void CpuStream::synchronize() {
    if (capture_) throw_internal("stream {} cannot be waited for while a graph captures it", name_);
    CpuEvent event(EventKind::order);
    record(event);
    event.synchronize();
    std::exception_ptr error;
    {
        std::lock_guard lock(mutex_);
        error = std::exchange(error_, nullptr);
    }
    if (error) std::rethrow_exception(error);
}

void CpuGraph::launch(Stream& stream) {
    for (const auto& call : calls_) call(static_cast<CpuStream&>(stream));
}

void CpuStream::run() {
    cpu::set_current_team(device_.team());
    bool failed = false;
    for (;;) {
        Task task;
        {
            std::unique_lock lock(mutex_);
            pushed_.wait(lock, [this] { return !queue_.empty(); });
            task = std::move(queue_.front());
            queue_.pop_front();
            failed = error_ != nullptr;
        }
        if (task.kind == TaskKind::stop) return;
        CpuClock& clock = device_.clock();
        if (task.kind == TaskKind::signal) task.event->signal(clock.now_ns());
        if (task.kind == TaskKind::wait) clock.waited_for(task.event->wait());
        if (task.kind != TaskKind::work || failed) continue;
        try {
            TraceSink* trace = device_.trace();
            const int64_t begin = trace ? clock.now_ns() : 0;
            task.work();
            clock.ran(name_, task.label);
            if (trace) trace->span(name_, task.label, begin, clock.now_ns(), task.tag);
        } catch (...) {
            std::lock_guard lock(mutex_);
            error_ = std::current_exception();
        }
    }
}

CpuDevice::CpuDevice(int num_threads, bool dry)
    : num_threads_(num_threads > 0 ? num_threads : default_threads()), dry_(dry), clock_(&steady_clock) {
    if (num_threads_ > 1 && !dry) team_ = std::make_unique<cpu::Team>(num_threads_);
}
CpuDevice::~CpuDevice() = default;

std::unique_ptr<Stream> CpuDevice::make_stream(const std::string& name, StreamPriority /*priority*/) {
    return std::make_unique<CpuStream>(name, *this);
}

bool CpuDevice::begin_graph(Stream& stream) {
    if (!graphs_allowed_ || dry_) return false;
    static_cast<CpuStream&>(stream).capture_ = std::make_unique<CpuGraph>();
    return true;
}

std::unique_ptr<Graph> CpuDevice::end_graph(Stream& stream) {
    return std::move(static_cast<CpuStream&>(stream).capture_);
}

void CpuDevice::set_dry_run(bool on) {
    dry_run_ = on;
    if (on || dry_) return;
    // Touches pages on all cores: the operating system clears a page where it is touched first.
    for (const auto& [data, bytes] : allocated_) {
        const int64_t pages = (bytes + kPage - 1) / kPage;
        if (team_)
            team_->run(pages, 8 * team_->size(), touch_pages, data);
        else
            touch_pages(data, 0, pages, 0);
    }
}

void CpuDevice::copy(void* destination, const void* source, int64_t bytes, Stream& stream) {
    static_cast<CpuStream&>(stream).submit("copy", [=] { std::memcpy(destination, source, bytes); });
}

int64_t CpuDevice::available_bytes() const {
    return host_memory().available;
}

// The operating system zeroes new pages. Large buffers ask for huge pages, which matmuls read faster.
void* CpuDevice::allocate(int64_t bytes) {
    if (bytes == 0) return nullptr;
    const int64_t size = mapped_bytes(bytes);
    const int64_t slack = size >= kHugePage ? kHugePage : 0;
    void* base = kCheckedMemory ? zeroed_heap(bytes) : map_pages(size + slack);
    if (!base) {
        throw_usage(
            "out of memory: {:.1f} MiB more do not fit; lower batch.microbatch_tokens or the model's size",
            static_cast<double>(bytes) / (1 << 20));
    }
    if (kCheckedMemory || !slack) {
        allocated_[base] = bytes;
        return base;
    }
    auto address = reinterpret_cast<uintptr_t>(base);
    const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
    if (aligned > address) munmap(base, aligned - address);
    const uintptr_t tail = address + slack - aligned;
    if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size), tail);
    auto* data = reinterpret_cast<void*>(aligned);
    madvise(data, size, MADV_HUGEPAGE);  // advice only: the operating system may refuse
    allocated_[data] = bytes;
    return data;
}

void CpuDevice::release(void* data, int64_t bytes) noexcept {
    if (!data) return;
    allocated_.erase(data);
    if (kCheckedMemory) {
        std::free(data);
    } else {
        munmap(data, mapped_bytes(bytes));
    }
}

}  // namespace speedrun
