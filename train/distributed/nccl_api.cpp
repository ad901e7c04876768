#include "train/distributed/nccl_api.h"

#include <dlfcn.h>

#include <mutex>
#include <type_traits>

#include "kernels/device/error.h"

namespace speedrun {

std::string NcclApi::version() const {
    int code = 0;
    check(get_version(&code), "ncclGetVersion");
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::string NcclApi::describe(ncclResult_t result, const std::string& call) const {
    const char* const last = last_error(nullptr);
    return fmt::format("{}: {}{}{}", call, error_string(result), last && *last ? ": " : "", last ? last : "");
}

void NcclApi::check(ncclResult_t result, const std::string& call) const {
    if (result != ncclSuccess) throw Error(ExitCode::communication, describe(result, call));
}

namespace {

bool find_all(void* library, NcclApi& api, std::string& why) {
    bool complete = true;
    const auto find = [&](auto& function, const char* symbol) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
        if (function) return;
        complete = false;
        why = fmt::format("libnccl.so.2 has no {}", symbol);
    };
    find(api.get_version, "ncclGetVersion");
    find(api.error_string, "ncclGetErrorString");
    find(api.last_error, "ncclGetLastError");
    find(api.get_unique_id, "ncclGetUniqueId");
    find(api.comm_init, "ncclCommInitRankConfig");
    find(api.comm_destroy, "ncclCommDestroy");
    find(api.comm_abort, "ncclCommAbort");
    find(api.async_error, "ncclCommGetAsyncError");
    find(api.all_reduce, "ncclAllReduce");
    find(api.reduce_scatter, "ncclReduceScatter");
    find(api.all_gather, "ncclAllGather");
    find(api.broadcast, "ncclBroadcast");
    find(api.send, "ncclSend");
    find(api.receive, "ncclRecv");
    find(api.group_start, "ncclGroupStart");
    find(api.group_end, "ncclGroupEnd");
    return complete;
}

}  // namespace

const NcclApi* load_nccl(std::string& why) {
    static std::mutex mutex;
    static NcclApi api;
    static bool loaded = false;
    std::lock_guard lock(mutex);
    if (loaded) return &api;
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
    if (!library) {
        why = dlerror();
        return nullptr;
    }
    loaded = find_all(library, api, why);
    return loaded ? &api : nullptr;
}

}  // namespace speedrun
