#include "train/comm/stop_signals.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr std::array kWriteSignals{SIGPIPE, SIGXFSZ};
std::atomic<std::int64_t> interrupted{0},
    terminated{0};  // time of the first signal, in ns of CLOCK_MONOTONIC; 0: none

std::int64_t monotonic_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

bool is_late_repeat(std::atomic<std::int64_t>& first) {
    const std::int64_t now = monotonic_ns();
    std::int64_t before = 0;
    if (first.compare_exchange_strong(before, now)) return false;
    return now - before > std::chrono::nanoseconds(kRepeatedSignal).count();
}

}  // namespace

void ignore_write_signals() {
    for (const int signal : kWriteSignals) std::signal(signal, SIG_IGN);
}

void restore_write_signals() {
    for (const int signal : kWriteSignals) std::signal(signal, SIG_DFL);
}

void handle_stop_signals(void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigset_t blocked;  // signals that the parent may have blocked
    sigemptyset(&blocked);
    for (const int signal : kStopSignals) {
        struct sigaction before {};
        if (sigaction(signal, nullptr, &before) != 0)
            throw_internal("signal {}: {}", signal, std::strerror(errno));
        if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
        if (sigaction(signal, &action, nullptr) != 0)
            throw_internal("signal {}: {}", signal, std::strerror(errno));
        sigaddset(&blocked, signal);
    }
    pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
}

bool insists(int signal) {
    if (signal == SIGINT) return is_late_repeat(interrupted);
    return signal == SIGTERM && is_late_repeat(terminated);
}

bool is_stop_code(int exit_code) {
    return std::find(kStopSignals.begin(), kStopSignals.end(), exit_code - 128) != kStopSignals.end();
}

std::string signal_text(int signal) {
    const char* const name = sigabbrev_np(signal);
    const std::string text = name ? std::string("SIG") + name : "signal " + std::to_string(signal);
    if (signal == SIGHUP) return text + " (its terminal was closed)";
    if (signal == SIGXCPU) return text + " (the limit of CPU time)";
    return text;
}

}  // namespace speedrun
