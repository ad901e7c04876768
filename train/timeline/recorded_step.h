// What one rank enqueues in some steps, written down: the engine itself enqueues it, on a device that runs nothing,
// in a world whose other ranks are not there. Rank 0 stands for all: others differ by padding and by which
// matrices they own.
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
        work,        // neither an operation nor a collective: copies, notes of the host
        operation,   // index: in RecordedSteps::operations
        collective,  // index: in RecordedSteps::collectives
        record,
        wait,  // index: of the item that records
    };
    Kind kind;
    int stream;  // in RecordedSteps::streams
    const char* label;
    int tag;  // in RecordedSteps::timeline
    int index;
};

struct RecordedCollective {
    Collective kind;
    int group;              // in RecordedSteps::groups
    int64_t payload_bytes;  // as wire_bytes() counts them; 0 for all_to_all
    // all_to_all: bytes to and from other ranks of the world.
    std::vector<std::pair<int, int64_t>> sends = {}, receives = {};

    double sent_bytes(int ranks) const;
};

struct RecordedSteps {
    int ranks = 1;  // of the world
    std::vector<std::string> streams;
    std::vector<RecordedItem> items;  // in the order of the host's calls; a stream's own are in its order
    std::vector<OpCost> operations;
    std::vector<RecordedCollective> collectives;
    std::vector<Group> groups;
    // Where each step begins in items. The steps of one period (StepRunner::period) come before, to fill the pipeline,
    // and one step behind, whose begin ends the last.
    std::vector<size_t> step_begins;
    int64_t period = 1;
    int64_t memory_bytes = 0;            // that a rank holds on its device
    std::unique_ptr<Timeline> timeline;  // what tags mean

    size_t first_measured() const { return static_cast<size_t>(period); }
    size_t end_measured() const { return static_cast<size_t>(2 * period); }
};

// Steps of a config of one stage. runtime: of a dry CPU. operations: note operations as such; else an operation is
// the pieces of work that a CPU makes of it.
RecordedSteps record_steps(const Config& config, RuntimeOptions runtime, const Ranks& ranks,
                           bool operations = true);

}  // namespace speedrun
