// A world with NCCL collectives, from GPU to GPU. Another world provides the host's exchanges and distributes NCCL's ids. Every
// communicator has its own NCCL communicator, so reductions and gathers overlap. All ranks must enqueue the collectives of all
// communicators in one order: NCCL 2.26 starts their kernels in that order, and an older one runs them one at a time.
//
// NCCL chooses the order of its sums: reproducible on the same machines and equal on all ranks, but different from the other
// worlds. In bf16 it rounds at every hop, so sums that must be exact are reduced in f32.
#pragma once

#include <memory>
#include <string>

#include "train/comm/communicator.h"

namespace speedrun {

struct NcclOptions {
    int max_ctas = 0;       // thread blocks per collective; 0: chosen by NCCL
    double timeout_s = 60;  // as in WorldOptions
    // Limit for connecting the ranks, which takes longer than any collective on many hosts.
    double start_timeout_s = 600;
};

// Returns the reason why NCCL (libnccl.so.2, and a build with NCCL) is not available; empty if it is.
std::string nccl_unavailable();
// "2.28.9". Requires that NCCL is available.
std::string nccl_version();

// `world` and `device` must outlive the result; no other rank may use the GPU. Sent bytes are computed by the formulas of
// collective.h, as NCCL does not report them. The first communicator connects the ranks; each communicator is split from it
// (ncclCommSplit), which needs no new connection. Each communicator runs every kind of call once before connect() returns, and
// its memory enters the memory table as measured. An error or a timeout is printed and ends the run with exit code 5. The
// missing ranks are then found through `world`, which may take the same time again. Collectives may be captured in graphs;
// captured ones are not watched.
std::unique_ptr<World> make_nccl_world(World& world, Device& device, const NcclOptions& options);

}  // namespace speedrun
