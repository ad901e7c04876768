// Every thread of the program starts here: a host that refuses one gets an error instead of std::terminate.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace speedrun {

// Throws a usage error that states the limits of this process and the cure.
[[noreturn]] void throw_no_thread(const std::string& name, const std::system_error& error);

// name: of the thread, for the message.
template <class Work>
std::thread start_thread(const std::string& name, Work&& work) {
    try {
        return std::thread(std::forward<Work>(work));
    } catch (const std::system_error& error) {
        throw_no_thread(name, error);
    }
}

}  // namespace speedrun
