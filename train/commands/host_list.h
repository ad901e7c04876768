// The hosts that `launch --hosts` may use.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

struct LaunchHost {
    std::string name;
    int slots = 1;  // ranks that it has room for
};

// Reads lines "NAME slots=N" as in Open MPI's hostfiles (without slots: 1); '#' begins a comment. Throws a usage error that names
// file and line. An error is also a name that a shell or ssh could take for something else, and a file without hosts.
std::vector<LaunchHost> read_launch_hosts(const std::string& path);

}  // namespace speedrun
