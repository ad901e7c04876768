#include <cstdio>
#include <filesystem>

#include "data/durable_file.h"
#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/trace/overlap.h"
#include "train/trace/timeline_svg.h"

namespace speedrun {

int run_trace(const TraceOptions& options) {
    std::error_code error;  // avoids an exception, e.g. for a link to itself
    const bool folder = std::filesystem::is_directory(options.file, error);
    const std::string path = folder ? options.file + "/trace.json" : options.file;
    const Trace trace = read_trace(path);
    const OverlapTable table = measure_overlap(trace, options.rank, options.step);
    std::printf("%s", options.json ? to_json(table).c_str() : to_text(table, options.top).c_str());
    const double error_us =
        trace.clock_error_us.count(options.rank) ? trace.clock_error_us.at(options.rank) : 0;
    if (!options.json && error_us > 0)
        std::printf("its clock is known within %.1f us of rank 0's\n", error_us);
    if (options.svg.empty()) return 0;
    const std::string title = options.title.empty() ? trace.ranks.at(options.rank) : options.title;
    write_file(options.svg, draw_timeline(trace, options.rank, options.step, title));
    return 0;
}

}  // namespace speedrun
