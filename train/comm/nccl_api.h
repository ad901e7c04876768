// The functions of NCCL that are used, loaded at run time: the program starts without the library, and ranks then communicate
// through the host.
#pragma once

#include <nccl.h>

#include <string>

namespace speedrun {

struct NcclApi {
    decltype(&::ncclGetVersion) get_version = nullptr;
    decltype(&::ncclGetErrorString) error_string = nullptr;
    decltype(&::ncclGetLastError) last_error = nullptr;
    decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
    decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
    decltype(&::ncclCommSplit) comm_split = nullptr;
    decltype(&::ncclCommDestroy) comm_destroy = nullptr;
    decltype(&::ncclCommAbort) comm_abort = nullptr;
    decltype(&::ncclCommGetAsyncError) async_error = nullptr;
    decltype(&::ncclAllReduce) all_reduce = nullptr;
    decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
    decltype(&::ncclAllGather) all_gather = nullptr;
    decltype(&::ncclBroadcast) broadcast = nullptr;
    decltype(&::ncclSend) send = nullptr;
    decltype(&::ncclRecv) receive = nullptr;
    decltype(&::ncclGroupStart) group_start = nullptr;
    decltype(&::ncclGroupEnd) group_end = nullptr;

    int version_code() const;     // 22809 for 2.28.9
    std::string version() const;  // "2.28.9"
    // Requests that kernels of different communicators start in the order of the host's calls. Returns false if this version
    // cannot do so, or if the environment forbids it. Without an order, two ranks may start kernels of different communicators,
    // which wait for each other (NCCL user guide, "Using multiple NCCL communicators concurrently"). Required before the first
    // communicator: NCCL reads the variable once.
    bool request_launch_order() const;
    // "ncclAllReduce on 'gather': unhandled system error: <text of ncclGetLastError>".
    std::string describe(ncclResult_t result, const std::string& call) const;
    // Throws exit code 5 with that text unless `result` is success.
    void check(ncclResult_t result, const std::string& call) const;
};

// Returns the functions of libnccl.so.2, found by the loader's search path. Null, with the reason in `why`, if the library is
// not available. Loaded once.
const NcclApi* load_nccl(std::string& why);

}  // namespace speedrun
