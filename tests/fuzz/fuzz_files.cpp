// Lines: 's': hashes of files. Else: hosts of a launch.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/checkpoint/checkpoint_info.h"
#include "train/commands/host_list.h"

void speedrun::fuzz::parse(std::string_view input) {
    if (input.empty()) return;
    const MemoryFile file(input.substr(1));
    if (input[0] == 's') return (void)read_sums(file.path());
    for (const LaunchHost& host : read_launch_hosts(file.path()))
        if (host.name.empty() || host.slots < 1) std::abort();
}
