// GPU activity from CUPTI's records: begin and end of every kernel, copy and fill, also inside a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

class ActivityTrace {
  public:
    using NamedStreams = std::vector<std::pair<std::string, cudaStream_t>>;

    virtual ~ActivityTrace() = default;  // ends the recording, if stop() has not
    // Assigns later kernels of this graph to `stream`.
    virtual void launched(cudaGraphExec_t graph, const std::string& stream) = 0;
    // Ends the recording; all streams must be idle. Passes to `sink` a span for each piece of work, on the
    // host's steady clock, with the name of its stream. Returns a sentence that states which data is missing;
    // empty: none.
    virtual std::string stop(const NamedStreams& streams, TraceSink& sink) = 0;
};

// Records all later work of this process. Loads libcupti.so.<major of the toolkit> from the loader's search
// path. Null, with the reason in `why`, if CUPTI is unavailable: not installed, a build without its headers,
// in use by another tool, or recording for another device of this process.
std::unique_ptr<ActivityTrace> start_cupti(std::string& why);

}  // namespace speedrun
