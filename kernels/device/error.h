// Errors with an exit code. Every failure that a user can cause is thrown as one of these and caught once, in
// main.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace speedrun {

// Process exit codes for scripts (docs/files.md).
enum class ExitCode : int { done = 0, failure = 1, usage = 2, data = 3, diverged = 4, communication = 5 };

class Error : public std::runtime_error {
  public:
    Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ExitCode code() const { return code_; }

  private:
    ExitCode code_;
};

// Bad usage or configuration: exit code 2.
template <class... Args>
[[noreturn]] void throw_usage(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(ExitCode::usage, fmt::format(format, std::forward<Args>(args)...));
}

// Missing or damaged data: exit code 3.
template <class... Args>
[[noreturn]] void throw_data(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

// A violated invariant of the program (wrong shape, missing wait): exit code 1.
template <class... Args>
[[noreturn]] void throw_internal(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(ExitCode::failure, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace speedrun
