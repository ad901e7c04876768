#include "kernels/cuda/device/cupti_trace.h"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "kernels/cuda/device/cupti_api.h"
#include "kernels/cuda/device/kernel_name.h"

namespace speedrun {

namespace {

constexpr size_t kBufferBytes = 4 << 20;  // about 20,000 records
constexpr size_t kBufferAlignment = 8;    // required by CUPTI
constexpr std::array kKinds{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                            CUPTI_ACTIVITY_KIND_MEMSET};

struct Activity {
    const char* label;
    uint32_t stream, graph;     // CUPTI's ids; graph 0: not in a graph
    uint64_t begin_ns, end_ns;  // CUPTI clock
};

// CUPTI callbacks have no user pointer, so their data is global.
struct Recorder {
    std::mutex mutex;
    CuptiApi api;
    bool busy = false;
    std::string problem;  // first error of a callback
    std::vector<Activity> activities;
    std::set<std::string> labels;  // never shrinks: spans point to its strings
};

Recorder& recorder() {
    static Recorder* const one = new Recorder;  // leaked: CUPTI may call back until the process ends
    return *one;
}

const char* copy_label(uint8_t kind) {
    if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD) return "copy to device";
    if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH) return "copy to host";
    return kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH ? "copy on host" : "copy on device";
}

// Records of kernels, copies and fills share these field names.
template <class Record>
Activity activity_of(const Record& record, const char* label) {
    return {label, record.streamId, record.graphId, record.start, record.end};
}

void note(Recorder& all, const CUpti_Activity* record) {
    switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_KERNEL:
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
            const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
            const char* const label = all.labels.insert(short_kernel_name(kernel.name)).first->c_str();
            all.activities.push_back(activity_of(kernel, label));
            return;
        }
        case CUPTI_ACTIVITY_KIND_MEMCPY: {
            const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
            all.activities.push_back(activity_of(copy, copy_label(copy.copyKind)));
            return;
        }
        case CUPTI_ACTIVITY_KIND_MEMSET:
            all.activities.push_back(
                activity_of(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), "fill"));
            return;
        default:
            return;
    }
}

void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* max_num_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    *size = *buffer ? kBufferBytes : 0;  // without memory CUPTI drops records and counts them
    *max_num_records = 0;                // no limit
}

void CUPTIAPI buffer_completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
    Recorder& all = recorder();
    {
        std::lock_guard lock(all.mutex);
        CUpti_Activity* record = nullptr;
        CUptiResult result = CUPTI_SUCCESS;
        while ((result = all.api.next_record(buffer, valid_bytes, &record)) == CUPTI_SUCCESS)
            note(all, record);
        if (result != CUPTI_ERROR_MAX_LIMIT_REACHED && all.problem.empty())
            all.problem = all.api.problem(result, "cuptiActivityGetNextRecord");
    }
    std::free(buffer);
}

// One moment on both clocks.
struct ClockPair {
    int64_t host_ns = 0;
    uint64_t cupti_ns = 0;
};

int64_t host_now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Returns the closest of a few readings: the thread may be preempted between the two clocks.
std::string read_clocks(const CuptiApi& api, ClockPair& pair) {
    int64_t shortest = INT64_MAX;
    for (int i = 0; i < 10; ++i) {
        uint64_t cupti = 0;
        const int64_t before = host_now_ns();
        const std::string problem = api.problem(api.timestamp(&cupti), "cuptiGetTimestamp");
        const int64_t took = host_now_ns() - before;
        if (!problem.empty()) return problem;
        if (took < shortest) pair = {before + took / 2, cupti};
        shortest = std::min(shortest, took);
    }
    return "";
}

// Maps CUPTI time to host time, linear between start and stop: the two clocks may run at slightly different
// rates.
class ClockMap {
  public:
    ClockMap(const ClockPair& start, const ClockPair& stop) : start_(start) {
        if (stop.cupti_ns > start.cupti_ns)
            rate_ = static_cast<double>(stop.host_ns - start.host_ns) /
                    static_cast<double>(stop.cupti_ns - start.cupti_ns);
    }
    int64_t host_ns(uint64_t cupti_ns) const {
        const auto since = static_cast<int64_t>(cupti_ns - start_.cupti_ns);
        return start_.host_ns + static_cast<int64_t>(static_cast<double>(since) * rate_);
    }

  private:
    const ClockPair start_;
    double rate_ = 1.0;
};

class CuptiTrace final : public ActivityTrace {
  public:
    explicit CuptiTrace(Recorder& all) : all_(all) {}

    ~CuptiTrace() override {
        end();
        std::lock_guard lock(all_.mutex);
        all_.busy = false;
    }

    std::string start() {
        std::string problem = read_clocks(all_.api, start_);
        for (const CUpti_ActivityKind kind : kKinds)
            if (problem.empty()) problem = all_.api.problem(all_.api.enable(kind), "cuptiActivityEnable");
        return problem;
    }

    void launched(cudaGraphExec_t graph, const std::string& stream) override {
        uint32_t id = 0;
        keep(all_.api.graph_id(reinterpret_cast<CUgraphExec>(graph), &id), "cuptiGetGraphExecId");
        if (id != 0) graphs_[id] = stream;
    }

    std::string stop(const NamedStreams& streams, TraceSink& sink) override {
        std::map<uint32_t, std::string> names;
        for (const auto& [name, handle] : streams) {
            uint32_t id = 0;
            keep(all_.api.stream_id(nullptr, reinterpret_cast<CUstream>(handle), 0, &id),
                 "cuptiGetStreamIdEx");
            names[id] = name;
        }
        end();
        const ClockMap clock(start_, stop_);
        std::lock_guard lock(all_.mutex);
        for (const Activity& one : all_.activities) {
            if (one.begin_ns == 0 && one.end_ns == 0) {  // CUPTI's encoding of missing times
                if (problem_.empty()) problem_ = fmt::format("CUPTI has no times of a {}", one.label);
                continue;
            }
            sink.span(name_of(one, names), one.label, clock.host_ns(one.begin_ns), clock.host_ns(one.end_ns));
        }
        all_.activities.clear();
        if (problem_.empty()) problem_ = all_.problem;
        return problem_.empty() ? "" : fmt::format("the timeline of the GPU is not complete: {}", problem_);
    }

  private:
    void keep(CUptiResult result, const char* call) {
        const std::string problem = all_.api.problem(result, call);
        if (problem_.empty()) problem_ = problem;
    }

    void end() {
        if (ended_) return;
        ended_ = true;
        keep(all_.api.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
        size_t dropped = 0;
        keep(all_.api.num_dropped(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
        if (dropped > 0 && problem_.empty()) problem_ = fmt::format("CUPTI dropped {} records", dropped);
        const std::string clocks = read_clocks(all_.api, stop_);
        if (problem_.empty()) problem_ = clocks;
        for (const CUpti_ActivityKind kind : kKinds) keep(all_.api.disable(kind), "cuptiActivityDisable");
    }

    // A graph may run its kernels on internal streams of the driver: such kernels are assigned to the stream
    // of the launch.
    std::string name_of(const Activity& one, const std::map<uint32_t, std::string>& names) const {
        if (const auto graph = graphs_.find(one.graph); one.graph != 0 && graph != graphs_.end())
            return graph->second;
        const auto name = names.find(one.stream);
        return name != names.end() ? name->second : fmt::format("stream {}", one.stream);
    }

    Recorder& all_;
    std::map<uint32_t, std::string> graphs_;
    ClockPair start_, stop_;
    std::string problem_;  // first error
    bool ended_ = false;
};

}  // namespace

std::unique_ptr<ActivityTrace> start_cupti(std::string& why) {
    Recorder& all = recorder();
    {
        std::lock_guard lock(all.mutex);
        if (all.busy) {
            why = "another device of this process is recording";
            return nullptr;
        }
        if (!all.api.num_dropped) {  // first call
            CuptiApi api;
            if (!load_cupti(api, why)) return nullptr;
            why = api.problem(api.register_callbacks(buffer_requested, buffer_completed),
                              "cuptiActivityRegisterCallbacks");
            if (!why.empty()) return nullptr;
            all.api = api;
        }
        all.busy = true;
        all.problem.clear();
        all.activities.clear();
    }
    auto trace = std::make_unique<CuptiTrace>(all);
    why = trace->start();
    if (!why.empty()) return nullptr;
    return trace;
}

}  // namespace speedrun
