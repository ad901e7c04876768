// A host that refuses a thread: every function that starts one throws an error that states the limits.
#include "kernels/device/start_thread.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/team.h"
#include "kernels/device/error.h"
#include "tests/errors.h"

namespace {

std::atomic<int> threads_left{-1};  // -1: no limit

}  // namespace

// Replaces the function of libc: returns EAGAIN after `threads_left` threads.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) {
    if (threads_left >= 0 && threads_left-- == 0) {
        threads_left = 0;
        return EAGAIN;
    }
    static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    return real(thread, attributes, run, argument);
}

namespace speedrun::testing::start_thread_test {

// Returns the message of the usage error that `start` throws if only `threads` threads can start.
template <class Start>
std::string refused_after(int threads, Start&& start) {
    threads_left = threads;
    try {
        start();
    } catch (const Error& error) {
        threads_left = -1;
        EXPECT_EQ(error.code(), ExitCode::usage);
        return error.what();
    }
    threads_left = -1;
    ADD_FAILURE() << "nothing was refused";
    return "";
}

TEST(StartThreadTest, RunsWork) {
    std::atomic<int> sum{0};
    std::thread thread = start_thread("test", [&] { sum += 3; });
    thread.join();
    EXPECT_EQ(sum, 3);
}

TEST(StartThreadTest, ErrorNamesThreadLimitsAndFix) {
    const std::string text = refused_after(0, [] { start_thread("watch", [] {}).join(); });
    EXPECT_THAT(text, HasSubstr("cannot start a thread (watch): Resource temporarily unavailable"));
    EXPECT_THAT(text, HasSubstr("this process has "));
    EXPECT_THAT(text, HasSubstr("threads=1"));
}

// Threads that started are stopped and joined.
TEST(StartThreadTest, TeamErrorNamesWorker) {
    for (const int started : {0, 1, 5}) {
        const std::string text = refused_after(started, [] { cpu::Team team(8); });
        EXPECT_THAT(text, HasSubstr(fmt::format("worker {} of 8", started + 2)));
    }
}

TEST(StartThreadTest, DeviceErrorNamesWorkerOrStream) {
    EXPECT_THAT(refused_after(2, [] { CpuDevice device(4); }), HasSubstr("worker 4 of 4"));
    CpuDevice device(2);
    EXPECT_THAT(refused_after(0, [&] { device.create_stream("copy"); }), HasSubstr("stream copy"));
}

}  // namespace speedrun::testing::start_thread_test
