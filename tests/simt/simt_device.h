// A CPU device that runs .cu kernels in the executor, with an execution order per device. Memory is on the heap (for
// AddressSanitizer). Non-goal: speed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/simt/bulk_copies.h"
#include "tests/simt/executor.h"
#include "tests/simt/warpgroup.h"

namespace speedrun::simt {

// A CpuStream with the options of its device; every launch draws a new seed.
class SimtStream final : public Stream {
  public:
    SimtStream(std::unique_ptr<Stream> stream, Options options)
        : stream_(std::move(stream)), options_(options) {}

    const std::string& name() const override { return stream_->name(); }
    void record(Event& event) override { stream_->record(event); }
    void wait(const Event& event) override { stream_->wait(event); }
    void synchronize() override { stream_->synchronize(); }

    CpuStream& cpu() {
        stream_->set_trace_tag(trace_tag());
        return static_cast<CpuStream&>(*stream_);
    }
    const Options& options() const { return options_; }
    Options next_options() {
        options_.seed = options_.seed * 6364136223846793005u + 1442695040888963407u;
        return options_;
    }

  private:
    std::unique_ptr<Stream> stream_;
    Options options_;
};

class SimtDevice final : public Device {
  public:
    explicit SimtDevice(Options options, bool dry = false) : cpu_(1, dry), options_(options) {}

    DeviceKind kind() const override { return DeviceKind::cuda; }
    void copy(void* destination, const void* source, int64_t bytes, Stream& stream) override {
        cpu_.copy(destination, source, bytes, static_cast<SimtStream&>(stream).cpu());
    }
    // Watches the streams created later; the watch must outlive them.
    void set_watch(Watch* watch) { options_.watch = watch; }
    bool dry() const override { return cpu_.dry(); }
    void set_trace(TraceSink* sink) override { cpu_.set_trace(sink); }
    int64_t available_bytes() const override { return cpu_.available_bytes(); }

  private:
    std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) override {
        return std::make_unique<SimtStream>(cpu_.create_stream(name, priority), options_);
    }
    std::unique_ptr<Event> make_event(EventKind kind) override { return cpu_.create_event(kind); }
    void* allocate(int64_t bytes) override;
    void release(void* data, int64_t bytes) noexcept override;

    CpuDevice cpu_;
    Options options_;
};

// Memory currently held by SimtDevices, in ascending order.
struct DeviceRange {
    uintptr_t begin, end;
};
std::vector<DeviceRange> device_memory();

// Enqueues a launch. On a stream that is not a SimtStream it runs in the order `forward`.
void submit(Stream& stream, Launch launch);
// Maximum shared memory of a block on the stream's device, in bytes.
int64_t max_shared_memory(Stream& stream);
int64_t multiprocessors(Stream& stream);
// Enqueues filling memory with the poison pattern: workspaces keep nothing between operations.
void poison(Stream& stream, void* data, int64_t bytes);

}  // namespace speedrun::simt
