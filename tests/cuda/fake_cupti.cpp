// build: in fake_cupti
#include "tests/cuda/fake_cupti.h"

#include <cuda.h>
#include <cupti.h>

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

using namespace speedrun::testing;

namespace {

constexpr uint64_t kOrigin = 3'000'000'000'000'000'000;
constexpr size_t kUsed = 4096;                 // bytes used per buffer: few, so that there are many buffers
constexpr uint32_t kStreamInsideGraphs = 999;  // an internal stream of the driver

struct State {
    std::mutex mutex;
    FakeCupti settings;
    CUpti_BuffersCallbackRequestFunc request = nullptr;
    CUpti_BuffersCallbackCompleteFunc complete = nullptr;
    std::set<CUpti_ActivityKind> enabled;
    std::map<const void*, uint32_t> ids;  // ids of streams and graphs
    std::set<std::string> names;          // stable addresses: the records point to them
    uint8_t* buffer = nullptr;
    size_t size = 0, used = 0;
    int delivered = 0;
};

State& state() {
    static State* const all = new State;
    return *all;
}

uint64_t clock_now() {
    const auto host = std::chrono::steady_clock::now().time_since_epoch();
    return kOrigin + 2 * static_cast<uint64_t>(std::chrono::nanoseconds(host).count());
}

uint32_t id_of(const void* handle) {
    return state().ids.emplace(handle, static_cast<uint32_t>(state().ids.size()) + 7).first->second;
}

// Delivers the buffer from a separate thread, as CUPTI does.
void deliver() {
    State& all = state();
    if (!all.buffer) return;
    std::thread([&] { all.complete(nullptr, 0, all.buffer, all.size, all.used); }).join();
    all.buffer = nullptr;
    ++all.delivered;
}

template <class Record>
void append(Record record, const FakeWork& work) {
    State& all = state();
    record.start = clock_now();
    record.end = record.start + 2 * kFakeWorkNs;
    record.streamId = work.graph ? kStreamInsideGraphs : id_of(work.stream);
    record.graphId = work.graph ? id_of(work.graph) : 0;
    if (all.buffer && all.used + sizeof record > kUsed) deliver();
    if (!all.buffer) {
        size_t num_records = 0;
        all.request(&all.buffer, &all.size, &num_records);
        all.used = 0;
    }
    std::memcpy(all.buffer + all.used, &record, sizeof record);
    all.used += sizeof record;
}

size_t bytes_of(const CUpti_Activity* record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return sizeof(CUpti_ActivityKernel10);
    if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) return sizeof(CUpti_ActivityMemcpy6);
    return sizeof(CUpti_ActivityMemset4);
}

CUptiResult answer() {
    return state().settings.refuses ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}

}  // namespace

extern "C" {

void fake_cupti_set(const FakeCupti& cupti) {
    std::lock_guard lock(state().mutex);
    state().settings = cupti;
}

void fake_cupti_work(const FakeWork& work) {
    std::lock_guard lock(state().mutex);
    if (work.kernel) {
        if (!state().enabled.count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) return;
        CUpti_ActivityKernel10 kernel{};
        kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        kernel.name = state().names.insert(work.kernel).first->c_str();
        append(kernel, work);
    } else {
        if (!state().enabled.count(CUPTI_ACTIVITY_KIND_MEMCPY)) return;
        CUpti_ActivityMemcpy6 copy{};
        copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
        append(copy, work);
    }
}

int fake_cupti_buffers() {
    std::lock_guard lock(state().mutex);
    return state().delivered;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
    *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "CUPTI_ERROR of the fake";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
    *timestamp = clock_now();
    return answer();
}
CUptiResult cuptiGetStreamIdEx(CUcontext, CUstream stream, uint8_t, uint32_t* id) {
    std::lock_guard lock(state().mutex);
    *id = id_of(stream);
    return answer();
}
CUptiResult cuptiGetGraphExecId(CUgraphExec graph, uint32_t* id) {
    std::lock_guard lock(state().mutex);
    *id = id_of(graph);
    return answer();
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
    std::lock_guard lock(state().mutex);
    state().request = request;
    state().complete = complete;
    return answer();
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    std::lock_guard lock(state().mutex);
    if (answer() == CUPTI_SUCCESS) state().enabled.insert(kind);
    return answer();
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    std::lock_guard lock(state().mutex);
    state().enabled.erase(kind);
    return answer();
}
CUptiResult cuptiActivityFlushAll(uint32_t) {
    std::lock_guard lock(state().mutex);
    deliver();
    return answer();
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record) {
    uint8_t* const next = *record ? reinterpret_cast<uint8_t*>(*record) + bytes_of(*record) : buffer;
    if (next >= buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
    std::lock_guard lock(state().mutex);
    *dropped = static_cast<size_t>(state().settings.records_lost);
    return answer();
}

}  // extern "C"
