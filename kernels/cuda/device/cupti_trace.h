// What the GPU did, as CUPTI's activity records tell it: every kernel, copy and fill with its begin and end,
// those inside a CUDA graph too.
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
    // The kernels of this graph belong to `stream` from here on.
    virtual void launched(cudaGraphExec_t graph, const std::string& stream) = 0;
    // Ends the recording; all streams are idle. Gives `sink` a span for each piece of work, on the host's
    // steady clock, under the name of its stream. Returns what is missing, one sentence; empty: nothing.
    virtual std::string stop(const NamedStreams& streams, TraceSink& sink) = 0;
};

// Records all work of this process from here on. Null, with the reason in `why`, where CUPTI
// (libcupti.so.<major of the toolkit>, looked for where the loader looks) cannot be had: it is not installed,
// the build had no headers of it, another tool holds it, or another device of this process records.
std::unique_ptr<ActivityTrace> start_cupti(std::string& why);

}  // namespace speedrun
