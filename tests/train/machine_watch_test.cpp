// GPU clock throttling during a run of an attempt, with a fake NVML. Other machine state: machine_state_test.
// Covers: kernels/cuda/device/gpu_clocks.cpp
#include "train/commands/machine_watch.h"
#include "tests/errors.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <thread>

#include "tests/distributed/thread_world.h"
#include "tests/train/fake_nvml.h"
#include "train/comm/self_world.h"
#include "train/records/machine_checks.h"

namespace speedrun::machine_watch_test {

using Names = std::set<std::string>;

constexpr const char* kFirst = "00000000:00:00";
constexpr const char* kSecond = "00000000:01:00";
constexpr unsigned long long kIdle = 0x1, kApplicationClocks = 0x2, kSyncBoost = 0x10, kDisplay = 0x100;
constexpr unsigned long long kPowerCap = 0x4, kThermal = 0x40;

// Reason that a GPU alone marks the run, without the CPU state of this machine.
std::string mark_of(const MachineState& state) {
    MachineState gpu;
    gpu.gpu_throttle = state.gpu_throttle;
    return gpu.problem();
}

class MachineWatchTest : public ::testing::TestWithParam<const char*> {
  protected:
    MachineWatchTest() {
        void* const library = dlopen(GetParam(), RTLD_NOW | RTLD_LOCAL);
        const auto get =
            library ? reinterpret_cast<decltype(&fake_nvml)>(dlsym(library, "fake_nvml")) : nullptr;
        if (!get) throw std::runtime_error(fmt::format("{} has no fake_nvml", GetParam()));
        nvml_ = get();
        nvml_->reasons[0] = nvml_->reasons[1] = kIdle;
        nvml_->inits = nvml_->fails = 0;
    }
    ~MachineWatchTest() override { EXPECT_EQ(nvml_->open, 0); }

    NvmlOptions options() const { return {.library = GetParam(), .every = std::chrono::milliseconds(2)}; }
    // Returns after two readings started after the call. Fails after 10 seconds.
    void await_readings() const {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        for (const int from = nvml_->reads; nvml_->reads < from + 3;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("NVML is not read");
        }
    }
    // A run with these throttle reasons in the middle and an idle GPU before and after them.
    MachineState run(MachineWatch& watch, unsigned long long reasons) const {
        watch.begin(kFirst);
        await_readings();
        nvml_->reasons[0] = reasons;
        await_readings();
        nvml_->reasons[0] = kIdle;
        await_readings();
        return watch.end();
    }

    FakeNvml* nvml_ = nullptr;
    const std::unique_ptr<World> world_ = make_self_world();
};

TEST_P(MachineWatchTest, ThermalReasonInTheMiddleMarksTheRun) {
    MachineWatch watch(*world_, options());
    const MachineState state = run(watch, kPowerCap | kThermal);
    EXPECT_EQ(state.gpu_throttle, (Names{"hw_thermal", "sw_power_cap"}));
    EXPECT_EQ(mark_of(state), "a GPU reduced its clocks: hw_thermal");
    const std::string text = machine_state_to_json(state);
    EXPECT_THAT(text, HasSubstr("\"gpu_throttle\": [\n    \"hw_thermal\",\n    \"sw_power_cap\"\n  ]"));
    EXPECT_EQ(machine_state_to_json(machine_state_from_json(text, "here")), text);
    // Reasons are recorded per run, and NVML is not opened again.
    EXPECT_EQ(run(watch, kIdle).gpu_throttle, Names{});
    EXPECT_EQ(nvml_->inits, 1);
}

TEST_P(MachineWatchTest, EachSlowdownMarks) {
    const std::map<unsigned long long, std::string> names = {
        {0x08, "hw_slowdown"}, {0x20, "sw_thermal"}, {0x40, "hw_thermal"}, {0x80, "hw_power_brake"}};
    MachineWatch watch(*world_, options());
    for (const auto& [bit, name] : names)
        EXPECT_EQ(mark_of(run(watch, bit | kIdle)), "a GPU reduced its clocks: " + name);
}

TEST_P(MachineWatchTest, IdleAndSetClocksAreNoThrottling) {
    MachineWatch watch(*world_, options());
    const MachineState state = run(watch, kIdle | kApplicationClocks | kSyncBoost | kDisplay);
    EXPECT_EQ(state.gpu_throttle, Names{});
    EXPECT_EQ(mark_of(state), "");
    EXPECT_THAT(machine_state_to_json(state), HasSubstr("\"gpu_throttle\": []"));
}

TEST_P(MachineWatchTest, PowerCapIsKeptAndMarksNothing) {
    MachineWatch watch(*world_, options());
    const MachineState state = run(watch, kPowerCap);
    EXPECT_EQ(state.gpu_throttle, Names{"sw_power_cap"});
    EXPECT_EQ(mark_of(state), "");
}

TEST_P(MachineWatchTest, BeginAndEndAreReadWithoutTheThread) {
    NvmlOptions seldom = options();
    seldom.every = std::chrono::hours(1);
    MachineWatch watch(*world_, seldom);
    nvml_->reasons[0] = 0x20;
    watch.begin(kFirst);
    nvml_->reasons[0] = 0x80;
    EXPECT_EQ(watch.end().gpu_throttle, (Names{"hw_power_brake", "sw_thermal"}));
}

TEST_P(MachineWatchTest, RunWithoutAGpuSaysNothing) {
    MachineWatch watch(*world_, options());
    ::testing::internal::CaptureStderr();
    watch.begin("");
    const MachineState state = watch.end();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_FALSE(state.gpu_throttle);
    EXPECT_EQ(machine_state_to_json(state).find("gpu_throttle"), std::string::npos);
    EXPECT_EQ(nvml_->inits, 0);
}

// Two runs of one attempt print a single warning that contains `reason`.
void expect_one_warning(MachineWatch& watch, const std::string& gpu, const std::string& reason) {
    ::testing::internal::CaptureStderr();
    for (int run = 0; run < 2; ++run) {
        watch.begin(gpu);
        const MachineState state = watch.end();
        EXPECT_FALSE(state.gpu_throttle);
        EXPECT_EQ(machine_state_to_json(state).find("gpu_throttle"), std::string::npos);
    }
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(text.starts_with("warning: no reasons for reduced clocks of a GPU: ")) << text;
    EXPECT_THAT(text, HasSubstr(reason));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST_P(MachineWatchTest, MissingLibraryGivesOneWarning) {
    MachineWatch watch(*world_, {.library = "libnvidia-ml-missing.so.1"});
    expect_one_warning(watch, kFirst, "libnvidia-ml-missing.so.1: cannot open shared object file");
}

TEST_P(MachineWatchTest, AnotherLibraryOrGpuOrAFailureGivesOneWarning) {
    MachineWatch other(*world_, {.library = "libc.so.6"});
    expect_one_warning(other, kFirst, "libc.so.6 has no nvmlInit_v2");
    MachineWatch unknown(*world_, options());
    expect_one_warning(unknown, "00000000:1b:00", "PciBusId_v2 of 00000000:1b:00.0: Not Found");
    nvml_->fails = 15;
    MachineWatch lost(*world_, options());
    expect_one_warning(lost, kFirst, "clocks of 00000000:00:00: GPU is lost");
}

TEST_P(MachineWatchTest, RanksHaveTheReasonsOfAllGpus) {
    nvml_->reasons[0] = kPowerCap;
    nvml_->reasons[1] = kThermal;
    const auto worlds = make_thread_worlds(2);
    std::vector<MachineState> states(2);
    const auto rank = [&](size_t i) {
        MachineWatch watch(*worlds[i], options());
        watch.begin(i == 0 ? kFirst : kSecond);
        states[i] = watch.end();
    };
    std::thread second(rank, 1);
    rank(0);
    second.join();
    for (const MachineState& state : states)
        EXPECT_EQ(state.gpu_throttle, (Names{"hw_thermal", "sw_power_cap"}));
}

TEST_P(MachineWatchTest, VerifyKnowsTheNames) {
    RecordRun run;
    run.machine = MachineState{.seconds = 1, .cores = 1, .gpu_throttle = Names{"sw_thermal"}};
    Record record;
    record.runs = {run};
    EXPECT_EQ(wall_problems(record), std::vector<std::string>{});
    record.runs[0].machine->gpu_throttle->insert("heat");
    EXPECT_EQ(wall_problems(record),
              std::vector<std::string>{"runs.0.machine.gpu_throttle: heat is no reason for reduced clocks"});
    EXPECT_THROW(machine_state_from_json(R"({"seconds": 1, "gpu_throttle": "sw_thermal"})", "here"), Error);
}

INSTANTIATE_TEST_SUITE_P(Drivers, MachineWatchTest, ::testing::Values(SPEEDRUN_FAKE_NVML, SPEEDRUN_OLD_NVML),
                         [](const auto& driver) { return driver.index == 0 ? "Now" : "Before535"; });

}  // namespace speedrun::machine_watch_test
