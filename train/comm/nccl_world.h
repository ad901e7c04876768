// A world whose collectives are NCCL's, from GPU to GPU. Another world does the host's exchanges and carries
// NCCL's ids. Every communicator is one of NCCL, so reducing and gathering never wait for each other.
//
// The order of NCCL's sums is its own: the same from run to run on the same machines, equal on all ranks, but
// not that of the other worlds; in bf16 it rounds at every hop, so what is to be exact is reduced in f32.
#pragma once

#include <memory>
#include <string>

#include "train/comm/communicator.h"

namespace speedrun {

struct NcclOptions {
    int max_ctas = 0;       // blocks of the GPU that a collective may take; 0: NCCL decides
    double timeout_s = 60;  // as in WorldOptions
    // Limit for connecting the ranks, which on many hosts takes longer than any collective.
    double start_timeout_s = 600;
};

// Can NCCL be had here (libnccl.so.2, and a build that knows it)? Else the reason.
std::string nccl_unavailable();
// "2.28.9"; only where it can be had.
std::string nccl_version();

// `world` and `device`, a GPU that no other rank has, must outlive the result. Sent bytes are counted by the
// formulas of collective.h: NCCL does not tell. The ranks are connected once, by the first communicator; each is split from that
// (ncclCommSplit), which needs no new connection. Nor does it enter its buffers in the memory table. An error,
// or a collective that does not end in time, is printed and ends the run with exit code 5; who is missing
// then is found out through `world`, which may take as long again. Collectives may be captured in graphs,
// unwatched.
std::unique_ptr<World> make_nccl_world(World& world, Device& device, const NcclOptions& options);

}  // namespace speedrun
