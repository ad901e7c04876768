// Returns the system's text for errno.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace speedrun {

inline std::string errno_text() {
    return std::generic_category().message(errno);
}

}  // namespace speedrun
