// Records the calls that one rank enqueues in several steps. The engine itself enqueues on a dry device, in a world without the
// other ranks. Rank 0 represents all ranks, which differ only by padding and by their assigned matrices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/metered_ops.h"
#include "kernels/runtime/runtime.h"
#include "train/comm/communicator.h"
#include "train/sharding/ranks.h"
#include "train/trace/timeline.h"

namespace speedrun {

struct RecordedItem {
    enum class Kind : uint8_t {
        work,        // neither an operation nor a collective: copies, host notes
        operation,   // index: in RecordedSteps::operations
        collective,  // index: in RecordedSteps::collectives
        record,
        wait,  // index: the item that records
    };
    Kind kind;
    int stream;  // index in RecordedSteps::streams
    const char* label;
    int tag;  // tag in RecordedSteps::timeline
    int index;
};

struct RecordedCollective {
    Collective kind;
    int group;              // index in RecordedSteps::groups
    int64_t payload_bytes;  // as for wire_bytes(); 0 for all_to_all
    // all_to_all: {rank of the world, bytes} to and from other ranks.
    std::vector<std::pair<int, int64_t>> sends = {}, receives = {};

    double sent_bytes(int ranks) const;
};

struct RecordedSteps {
    int ranks = 1;  // size of the world
    std::vector<std::string> streams;
    std::vector<RecordedItem> items;  // in the order of the host's calls, which includes each stream's order
    std::vector<OpCost> operations;
    std::vector<RecordedCollective> collectives;
    std::vector<Group> groups;
    // Index in items of each step's start. One period of steps (StepRunner::period) runs before to fill the pipeline. One step
    // follows; its start is the end of the last step.
    std::vector<size_t> step_begins;
    int64_t period = 1;
    int64_t memory_bytes = 0;            // device memory per rank
    std::unique_ptr<Timeline> timeline;  // meaning of the tags

    size_t first_measured() const { return static_cast<size_t>(period); }
    size_t end_measured() const { return static_cast<size_t>(2 * period); }
};

// Records steps of a config of one stage, from StepRunner::first_steady_step(). runtime: a dry CPU. operations: record operations as such; else an operation is
// recorded as the CPU's pieces of work.
RecordedSteps record_steps(const Config& config, RuntimeOptions runtime, const Ranks& ranks,
                           bool operations = true);

}  // namespace speedrun
