// The host list of `launch --hosts`.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

struct LaunchHost {
    std::string name;
    int slots = 1;  // maximum number of ranks
};

// Reads lines "NAME slots=N" as in Open MPI's hostfiles (without slots: 1); '#' starts a comment. Throws a usage error that
// names file and line. Errors include a name with a special meaning for a shell or ssh, and a file without hosts.
std::vector<LaunchHost> read_launch_hosts(const std::string& path);

}  // namespace speedrun
