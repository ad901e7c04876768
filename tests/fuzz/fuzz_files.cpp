// Lines: 's': hashes of files. Else: hosts of a launch.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/checkpoint/checkpoint_info.h"
#include "train/commands/host_list.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const speedrun::fuzz::MemoryFile file({reinterpret_cast<const char*>(data) + 1, size - 1});
    speedrun::fuzz::expect_clean([&] {
        if (data[0] == 's') return (void)speedrun::read_sums(file.path());
        for (const speedrun::LaunchHost& host : speedrun::read_launch_hosts(file.path()))
            if (host.name.empty() || host.slots < 1) std::abort();
    });
    return 0;
}
