// What the operating system says of the call that failed last.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace speedrun {

inline std::string errno_text() {
    return std::generic_category().message(errno);
}

}  // namespace speedrun
