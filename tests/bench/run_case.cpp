#include "tests/bench/run_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace speedrun::bench {

namespace {

constexpr int kMaxSets = 16;
constexpr int64_t kHostSample = 4096;  // elements at a tensor's start and end that the host checks

bool is_bad(const Tensor& tensor, const char* element) {
    if (tensor.dtype == DType::bf16) return !std::isfinite(float{*reinterpret_cast<const Bf16*>(element)});
    if (tensor.dtype == DType::e4m3) return !std::isfinite(float{*reinterpret_cast<const E4m3*>(element)});
    if (tensor.dtype == DType::e5m2) return !std::isfinite(float{*reinterpret_cast<const E5m2*>(element)});
    return !std::isfinite(*reinterpret_cast<const float*>(element));
}

// Counts non-finite FP8 elements on the host: count_nonfinite does not support FP8.
double count_on_host(const Tensor& tensor, Backend& backend, Stream& stream) {
    std::vector<char> host(static_cast<size_t>(tensor.bytes()));
    backend.device->copy(host.data(), tensor.data, tensor.bytes(), stream);
    stream.synchronize();
    return static_cast<double>(std::count_if(host.begin(), host.end(),
                                             [&](const char& element) { return is_bad(tensor, &element); }));
}

// Counts non-finite elements with the operation count_nonfinite.
double count_nonfinite(const Tensor& tensor, Backend& backend, Stream& stream) {
    if (is_fp8(tensor.dtype)) return count_on_host(tensor, backend, stream);
    Buffer count(*backend.device, "bench", MemoryCategory::workspace, sizeof(float));
    float found = -1.0f;
    const Tensor out = count.tensor(DType::f32, {1});
    backend.ops->count_nonfinite({.out = out, .x = tensor.reshaped({tensor.numel()})}, stream);
    backend.device->copy(&found, out.data, sizeof found, stream);
    stream.synchronize();
    return found;
}

// Checks both ends of the tensor on the host, independently of a kernel that may be wrong.
bool sample_is_finite(const Tensor& tensor, Backend& backend, Stream& stream) {
    const int64_t count = std::min(tensor.numel(), kHostSample), size = size_of(tensor.dtype);
    std::vector<char> host(static_cast<size_t>(count * size));
    for (const int64_t first : {int64_t{0}, tensor.numel() - count}) {
        backend.device->copy(host.data(), static_cast<const char*>(tensor.data) + first * size, count * size,
                             stream);
        stream.synchronize();
        for (int64_t i = 0; i < count; ++i) {
            if (is_bad(tensor, host.data() + i * size)) return false;
        }
    }
    return true;
}

}  // namespace

PreparedCase::PreparedCase(const Case& c, Backend& backend, Stream& stream, DType compute_dtype)
    : backend_(backend), stream_(stream) {
    Ops& ops = *backend.ops;
    std::vector<Enqueue> enqueue;
    const auto add_set = [&] {
        sets_.push_back(std::make_unique<CaseMemory>(*backend.device, ops, stream, compute_dtype));
        enqueue.push_back(c.prepare(*sets_.back()));
    };
    add_set();
    // Together the sets exceed twice the cache.
    const int64_t footprint = std::max<int64_t>(sets_[0]->footprint(), 1);
    const int64_t requested = std::min<int64_t>(2 * backend.cache_bytes / footprint + 1, kMaxSets);
    while (sets() < requested) add_set();
    for (const Tensor& tensor : sets_[0]->poisoned()) {
        if (count_nonfinite(tensor, backend, stream) > 0) continue;
        throw_internal("count_nonfinite finds nothing in the poisoned {}", tensor.describe());
    }
    MeteredOps meter(ops);
    meter.start();
    enqueue[0](meter, stream);
    stream.synchronize();  // no work is in flight if this throws, or if no calls follow
    if (meter.calls().size() != 1 || meter.calls()[0].cost.op != c.op)
        throw_internal("the case does not run {} alone", c.op);
    cost_ = meter.calls()[0].cost;
    for (const Enqueue& call : enqueue) calls_.push_back([call, &ops, &stream] { call(ops, stream); });
}

void PreparedCase::check_outputs() {
    for (const auto& set : sets_) {
        for (const Tensor& tensor : set->results()) {
            const double bad = count_nonfinite(tensor, backend_, stream_);
            if (bad == 0 && sample_is_finite(tensor, backend_, stream_)) continue;
            throw_internal("about {:.0f} of {} elements are not finite or were never written in {}", bad,
                           tensor.numel(), tensor.describe());
        }
    }
}

Measurement run_case(const Case& c, Backend& backend, Stream& stream, Timer& timer, DType compute_dtype,
                     const TimingOptions& options) {
    Measurement result;
    std::unique_ptr<PreparedCase> prepared;  // freed after the stream has settled
    try {
        prepared = std::make_unique<PreparedCase>(c, backend, stream, compute_dtype);
        result.bytes = prepared->bytes();
        result.sets = prepared->sets();
        result.timing = timer.time(prepared->calls(), options);
        prepared->check_outputs();
    } catch (const std::exception& error) {
        result.failure = error.what();
        settle(stream);
    }
    return result;
}

std::vector<std::string> operations_without_case(const std::set<std::string>& timed) {
    std::vector<std::string> missing;
    for (const std::string& name : all_operations()) {
        if (timed.count(name) == 0) missing.push_back(name);
    }
    return missing;
}

double expected_ms(const Published& published, double flops, const RooflineBound& bound) {
    if (published.tflops > 0) return flops / (published.tflops * 1e9);
    if (published.share_of_bound > 0) return bound.ms / published.share_of_bound;
    return published.ms;
}

}  // namespace speedrun::bench
