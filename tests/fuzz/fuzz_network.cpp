// A network file: an accepted one has finite times.
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/timeline/network.h"

void speedrun::fuzz::parse(std::string_view input) {
    const Network network = parse_network(input, "fuzz");
    const Group group{.ranks = {0, 1, 8, 9}, .index = 0};
    const RecordedCollective sum{.kind = Collective::all_reduce, .group = 0, .payload_bytes = 1 << 20};
    const double seconds = collective_time(network, sum, group).seconds();
    if (!(seconds >= 0) || !std::isfinite(seconds)) std::abort();
}
