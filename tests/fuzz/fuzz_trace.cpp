// A trace, with the overlap and the picture of each of its ranks.
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/trace/overlap.h"
#include "train/trace/timeline_svg.h"

namespace speedrun {
namespace {

void show(const Trace& trace, int rank) {
    const OverlapTable table = measure_overlap(trace, rank, std::nullopt);
    if (!std::isfinite(table.compute_ms) || !(table.stalled_ms > -1e12)) std::abort();
    (void)to_text(table, 2);
    (void)to_json(table);
    (void)draw_timeline(trace, rank, std::nullopt, "fuzz");
}

}  // namespace
namespace fuzz {

void parse(std::string_view input) {
    const MemoryFile file(input);
    const Trace trace = read_trace(file.path());
    for (const auto& [rank, name] : trace.ranks) expect_clean([&, rank = rank] { show(trace, rank); });
    show(trace, trace.spans.front().rank);
}

}  // namespace fuzz
}  // namespace speedrun
