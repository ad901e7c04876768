// Timelines from CUPTI's records against the fake runtime and the fake CUPTI.
// Covers: kernels/cuda/device/cupti_*.cpp kernels/cuda/device/kernel_name.cpp
// build: in cupti
#include "kernels/cuda/device/cupti_trace.h"
#include "kernels/cuda/device/kernel_name.h"

#include <dlfcn.h>

#include <chrono>
#include <mutex>
#include <sstream>

#include "kernels/cuda/device/cuda_device.h"
#include "tests/cuda/fake_cupti.h"
#include "tests/errors.h"
#include "tests/runs/run_fixture.h"

namespace speedrun::testing {
namespace {

// Loaded at program start, so that no test finds a real CUPTI of this machine.
void* const library = dlopen(SPEEDRUN_FAKE_CUPTI, RTLD_NOW | RTLD_LOCAL);

template <class Function>
Function* find(const char* name) {
    auto* const function = library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
    if (!function) throw_internal("{}: no {}", SPEEDRUN_FAKE_CUPTI, name);
    return function;
}

void set_fake_cupti(const FakeCupti& cupti) {
    find<decltype(fake_cupti_set)>("fake_cupti_set")(cupti);
}

struct Spans final : TraceSink {
    struct Span {
        std::string stream, label;
        int64_t begin, end;
    };
    void span(const std::string& stream, const char* label, int64_t begin, int64_t end,
              int /*tag*/) override {
        std::lock_guard lock(mutex);
        spans.push_back({stream, label, begin, end});
    }
    std::mutex mutex;
    std::vector<Span> spans;
};

int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class CuptiTest : public RunFixture {
  protected:
    CuptiTest() {
        set_fake_cupti({.refuses = false});
        set_fake_gpu_listener(find<decltype(fake_cupti_work)>("fake_cupti_work"));
    }
    ~CuptiTest() override {
        set_fake_cupti({});
        set_fake_gpu_listener(nullptr);
    }
    struct Traced {
        std::map<std::string, std::map<std::string, int>> names;  // key: stream, then name
        std::string log;
    };
    // Steps 2 and 3 of three microbatches each.
    Traced traced_run() {
        run(config({"device=cuda", "cuda.products=hand", "batch.tokens_per_step=1536", "schedule.steps=5"}),
            "traced", {.quiet = true, .trace_first = 2, .trace_last = 3});
        const fs::path folder = folder_ / "logs" / "traced";
        std::ifstream trace(folder / "trace.json"), log(folder / "run.log");
        Traced result;
        std::map<int, std::string> streams;
        const Json file = Json::parse(trace);
        for (const Json& event : file["traceEvents"]) {
            if (event["name"] == "thread_name")
                streams[event["tid"]] = event["args"]["name"];
            else if (event["ph"] == "X")
                ++result.names[streams.at(event["tid"])][event["name"]];
        }
        std::ostringstream text;
        text << log.rdbuf();
        result.log = text.str();
        return result;
    }
};

TEST_F(CuptiTest, TraceHasKernelsInsideGraphs) {
    const int buffers = find<decltype(fake_cupti_buffers)>("fake_cupti_buffers")();
    const Traced traced = traced_run();
    int attention = 0;
    for (const auto& [name, count] : traced.names.at("compute")) {
        attention += name.find("attention_forward") != std::string::npos ? count : 0;
        EXPECT_EQ(name.find("speedrun::"), std::string::npos) << name;
        EXPECT_NE(name.back(), ')') << name;
    }
    EXPECT_EQ(attention, 2 * 3 * 2);  // two steps of three microbatches through two layers
    EXPECT_EQ(traced.names.at("compute").at("copy to device"), 2 * 3 * 4) << "four arrays a microbatch";
    EXPECT_FALSE(traced.names.at("optimizer").empty());
    EXPECT_EQ(traced.names.size(), 2u) << "a stream has no name";
    EXPECT_EQ(traced.log.find("CUPTI"), std::string::npos) << traced.log;
    EXPECT_GT(find<decltype(fake_cupti_buffers)>("fake_cupti_buffers")(), buffers + 10);
}

TEST_F(CuptiTest, FallsBackToEventPairs) {
    set_fake_cupti({.refuses = true});
    const Traced traced = traced_run();
    EXPECT_EQ(traced.names.at("compute").at("attention_forward"), 2 * 3 * 2);
    EXPECT_THAT(traced.log, HasSubstr("CUPTI cannot be used"));
}

TEST_F(CuptiTest, ReportsLostRecords) {
    set_fake_cupti({.refuses = false, .records_lost = 3});
    EXPECT_THAT(traced_run().log, HasSubstr("not complete: CUPTI dropped 3 records"));
}

// The fake's clock has a different origin and rate.
TEST_F(CuptiTest, SpansUseHostClock) {
    CudaDevice device;
    const auto stream = device.create_stream("copy");
    std::vector<int> from(4), to(4);
    Spans sink;
    device.set_trace(&sink);
    EXPECT_EQ(device.trace_limits(), "");
    constexpr int kCopies = 50;
    std::vector<int64_t> before, after;
    for (int i = 0; i < kCopies; ++i) {
        before.push_back(now_ns());
        device.copy(to.data(), from.data(), 16, *stream);
        after.push_back(now_ns());
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    static_cast<CudaStream&>(*stream).submit("reduce_scatter", [] {});
    stream->synchronize();
    device.set_trace(nullptr);
    ASSERT_EQ(sink.spans.size(), kCopies + 1u);
    // Half of the shortest of ten readings of two clocks, in ns; a busy machine may stretch even that.
    constexpr int64_t kClockError = 20'000'000;
    for (size_t i = 0; i < sink.spans.size(); ++i) {
        const Spans::Span& span = sink.spans[i];
        if (span.label == "reduce_scatter") continue;
        EXPECT_EQ(span.stream, "copy");
        // Host work ends early, so it is first.
        EXPECT_GE(span.begin, before[i - 1] - kClockError) << i;
        EXPECT_LE(span.begin, after[i - 1] + kClockError) << i;
        EXPECT_NEAR(span.end - span.begin, kFakeWorkNs, kFakeWorkNs / 10) << i;
    }
}

TEST_F(CuptiTest, TracesOneDevicePerProcess) {
    CudaDevice first, second;
    Spans sink;
    first.set_trace(&sink);
    second.set_trace(&sink);
    EXPECT_THAT(second.trace_limits(), HasSubstr("another device of this process"));
    first.set_trace(nullptr);
    second.set_trace(nullptr);
    second.set_trace(&sink);
    EXPECT_EQ(second.trace_limits(), "");
}

TEST(KernelNameTest, ShortensMangledNames) {
    EXPECT_EQ(short_kernel_name("_ZN8speedrun12_GLOBAL__N_111norm_kernelIfEEvPT_l"), "norm_kernel<float>");
    EXPECT_EQ(short_kernel_name("_ZN8speedrun11sum_norm_cu12_GLOBAL__N_111norm_kernelIfEEvPT_l"),
              "norm_kernel<float>");
    EXPECT_EQ(short_kernel_name("ncclDevKernel_AllReduce"), "ncclDevKernel_AllReduce");
    EXPECT_EQ(short_kernel_name("_Z4pairSt4pairIilE"), "pair");
}

}  // namespace
}  // namespace speedrun::testing
