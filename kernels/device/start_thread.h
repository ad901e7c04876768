// Starts every thread of the program. If the host refuses a thread, the user gets an error instead of
// std::terminate.
#pragma once

#include <chrono>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace speedrun {

// Throws a usage error that states the limits of this process and the remedy.
[[noreturn]] void throw_no_thread(const std::string& name, const std::system_error& error);

// name: name of the thread, for the message.
template <class Work>
std::thread start_thread(const std::string& name, Work&& work) {
    try {
        return std::thread(std::forward<Work>(work));
    } catch (const std::system_error& error) {
        throw_no_thread(name, error);
    }
}

// Runs `work` on a new thread, or in get() of the result if the host refuses a thread.
template <class Work>
auto start_task(Work&& work) {
    return std::async(std::launch::async | std::launch::deferred, std::forward<Work>(work));
}

// False while the task runs on its thread. Waits for it up to `patience`.
template <class T>
bool can_get(const std::future<T>& task, std::chrono::milliseconds patience) {
    return task.wait_for(patience) != std::future_status::timeout;
}

template <class T>
bool is_deferred(const std::future<T>& task) {
    return task.wait_for(std::chrono::milliseconds(0)) == std::future_status::deferred;
}

}  // namespace speedrun
