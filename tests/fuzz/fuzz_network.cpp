// A network file: an accepted one has finite times.
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/timeline/network.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    speedrun::fuzz::expect_clean([&] {
        const speedrun::Network network =
            speedrun::parse_network({reinterpret_cast<const char*>(data), size}, "fuzz");
        const speedrun::Group group{.ranks = {0, 1, 8, 9}, .index = 0};
        const speedrun::RecordedCollective sum{
            .kind = speedrun::Collective::all_reduce, .group = 0, .payload_bytes = 1 << 20};
        const double seconds = collective_time(network, sum, group).seconds();
        if (!(seconds >= 0) || !std::isfinite(seconds)) std::abort();
    });
    return 0;
}
