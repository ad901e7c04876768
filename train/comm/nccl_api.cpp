#include "train/comm/nccl_api.h"

#include <cstdlib>
#include <mutex>
#include <string_view>

#include "kernels/device/error.h"
#include "kernels/device/shared_library.h"

namespace speedrun {

namespace {

constexpr const char* kLaunchOrder = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr int kFirstWithLaunchOrder = 22600;  // 2.26

}  // namespace

int NcclApi::version_code() const {
    int code = 0;
    check(get_version(&code), "ncclGetVersion");
    return code;
}

std::string NcclApi::version() const {
    const int code = version_code();
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

bool NcclApi::request_launch_order() const {
    if (setenv(kLaunchOrder, "1", 0) != 0)
        throw Error(ExitCode::communication, fmt::format("cannot set {} in the environment", kLaunchOrder));
    const char* const value = std::getenv(kLaunchOrder);
    return version_code() >= kFirstWithLaunchOrder && value && std::string_view(value) == "1";
}

std::string NcclApi::describe(ncclResult_t result, const std::string& call) const {
    const char* const last = last_error(nullptr);
    return fmt::format("{}: {}{}{}", call, error_string(result), last && *last ? ": " : "", last ? last : "");
}

void NcclApi::check(ncclResult_t result, const std::string& call) const {
    if (result != ncclSuccess) throw Error(ExitCode::communication, describe(result, call));
}

const NcclApi* load_nccl(std::string& why) {
    static std::mutex mutex;
    static NcclApi api;
    static bool loaded = false;
    std::lock_guard lock(mutex);
    if (loaded) return &api;
    SharedLibrary library("libnccl.so.2");
    library.find(api.get_version, "ncclGetVersion");
    library.find(api.error_string, "ncclGetErrorString");
    library.find(api.last_error, "ncclGetLastError");
    library.find(api.get_unique_id, "ncclGetUniqueId");
    library.find(api.comm_init, "ncclCommInitRankConfig");
    library.find(api.comm_split, "ncclCommSplit");
    library.find(api.comm_destroy, "ncclCommDestroy");
    library.find(api.comm_abort, "ncclCommAbort");
    library.find(api.async_error, "ncclCommGetAsyncError");
    library.find(api.all_reduce, "ncclAllReduce");
    library.find(api.reduce_scatter, "ncclReduceScatter");
    library.find(api.all_gather, "ncclAllGather");
    library.find(api.broadcast, "ncclBroadcast");
    library.find(api.send, "ncclSend");
    library.find(api.receive, "ncclRecv");
    library.find(api.group_start, "ncclGroupStart");
    library.find(api.group_end, "ncclGroupEnd");
    why = library.problem();
    loaded = why.empty();
    return loaded ? &api : nullptr;
}

}  // namespace speedrun
