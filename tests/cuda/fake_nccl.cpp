// build: in fake_nccl
#include "tests/cuda/fake_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/device/dtype.h"
#include "tests/cuda/fake_collectives.h"

using namespace speedrun;
using namespace speedrun::testing;

namespace {

struct State {
    std::mutex mutex;
    FakeNccl settings;
    std::map<std::thread::id, std::shared_ptr<OneAtATime>> gpus;
    std::map<std::string, int> calls;
    int num_ids = 0, max_ctas = 0, open = 0, inits = 0, splits = 0;
    std::map<int, std::shared_ptr<Hub>> hubs;
};

State& state() {
    static State* const all = new State;
    return *all;
}

FakeNccl settings() {
    std::lock_guard lock(state().mutex);
    return state().settings;
}

}  // namespace

struct ncclComm {
    std::shared_ptr<Hub> hub;
    int rank = 0;
    bool ordered = false;  // value of the environment at its creation
};

namespace {

std::shared_ptr<Hub> make_hub(int size) {
    auto hub = std::make_shared<Hub>();
    hub->size = size;
    hub->sent.resize(static_cast<size_t>(size));
    return hub;
}

// Returns a new communicator when all its members have called.
ncclComm* join(const std::shared_ptr<Hub>& hub, int rank) {
    hub->meet();
    auto* const comm = new ncclComm;
    comm->hub = hub;
    comm->rank = rank;
    const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    comm->ordered = settings().version >= 22600 && order && std::string_view(order) == "1";
    if (settings().connected) settings().connected();
    return comm;
}

void wait_for_ever_if(bool hangs) {
    if (!hangs) return;
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable never;
    never.wait(lock, [] { return false; });
}

// Enqueues a collective of this rank.
void enqueue(const char* function, const ncclComm* comm, cudaStream_t stream, std::function<void()> work) {
    const FakeNccl now = settings();
    {
        std::lock_guard lock(state().mutex);
        ++state().calls[function];
    }
    wait_for_ever_if(now.blocks);
    if (!now.one_at_a_time) return now.enqueue(stream, std::move(work));
    std::shared_ptr<OneAtATime> gpu;
    {
        std::lock_guard lock(state().mutex);
        auto& entry = state().gpus[std::this_thread::get_id()];
        if (!entry) entry = std::make_shared<OneAtATime>(state().gpus.size() % 2 == 0);
        gpu = entry;
    }
    now.enqueue(stream, [gpu, ticket = gpu->next_ticket(), ordered = comm->ordered, work = std::move(work)] {
        gpu->start(ticket, ordered);
        work();
        gpu->end();
    });
}

// Sends and receives between ncclGroupStart and ncclGroupEnd.
struct Group {
    ncclComm* comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Message> sends, receives;
};
thread_local Group group;

size_t size_of_type(ncclDataType_t type) {
    return type == ncclBfloat16 ? 2 : 4;
}

// Passes `given`, waits for the other members, computes the result with `compute`, and writes it to `output`
// when no member reads any more.
using Inputs = std::vector<std::vector<const void*>>;
ncclResult_t collective(const char* function, ncclComm* comm, cudaStream_t stream,
                        std::vector<const void*> given, void* output, size_t bytes,
                        std::function<void(const Inputs&, std::vector<char>&)> compute) {
    if (settings().refuses) return ncclSystemError;
    enqueue(function, comm, stream,
            [hub = comm->hub, rank = comm->rank, given = std::move(given), output, bytes,
             compute = std::move(compute)] {
                {
                    std::lock_guard lock(hub->mutex);
                    hub->sent[static_cast<size_t>(rank)] = given;
                }
                if (!hub->meet()) return;
                std::vector<char> result(bytes);
                compute(hub->sent, result);
                if (!hub->meet()) return;
                if (bytes > 0) std::memcpy(output, result.data(), bytes);
                hub->meet();
            });
    return ncclSuccess;
}

template <class T>
void sum(const Inputs& inputs, size_t begin, size_t count, std::vector<char>& result) {
    for (size_t e = 0; e < count; ++e) {
        float total = 0;
        for (size_t i = 0; i < inputs.size(); ++i) {
            const auto value = static_cast<float>(static_cast<const T*>(inputs[i][0])[begin + e]);
            total = i == 0 ? value : total + value;
        }
        const auto rounded = static_cast<T>(total);
        std::memcpy(result.data() + e * sizeof rounded, &rounded, sizeof rounded);
    }
}

void largest(const Inputs& inputs, size_t begin, size_t count, std::vector<char>& result) {
    for (size_t e = 0; e < count; ++e) {
        uint32_t value = 0;
        for (const std::vector<const void*>& input : inputs)
            value = std::max(value, static_cast<const uint32_t*>(input[0])[begin + e]);
        std::memcpy(result.data() + e * sizeof value, &value, sizeof value);
    }
}

ncclResult_t reduce(const char* function, const void* input, void* output, size_t begin, size_t count,
                    ncclDataType_t type, ncclRedOp_t op, ncclComm* comm, cudaStream_t stream) {
    if (op == ncclMax && type == ncclUint32) {
        return collective(
            function, comm, stream, {input}, output, count * sizeof(uint32_t),
            [=](const Inputs& inputs, std::vector<char>& result) { largest(inputs, begin, count, result); });
    }
    if (op != ncclSum) return ncclInvalidArgument;
    return collective(function, comm, stream, {input}, output, count * size_of_type(type),
                      [=](const Inputs& inputs, std::vector<char>& result) {
                          if (type == ncclBfloat16)
                              sum<Bf16>(inputs, begin, count, result);
                          else
                              sum<float>(inputs, begin, count, result);
                      });
}

}  // namespace

extern "C" {

void fake_nccl_set(const FakeNccl& nccl) {
    std::lock_guard lock(state().mutex);
    state().settings = nccl;
    if (state().settings.version == 0) state().settings.version = NCCL_VERSION_CODE;
    state().gpus.clear();
    state().calls.clear();
}
int fake_nccl_max_ctas() {
    std::lock_guard lock(state().mutex);
    return state().max_ctas;
}
int fake_nccl_open() {
    std::lock_guard lock(state().mutex);
    return state().open;
}
int fake_nccl_inits() {
    std::lock_guard lock(state().mutex);
    return state().inits;
}
int fake_nccl_calls(const char* function) {
    std::lock_guard lock(state().mutex);
    return state().calls[function];
}
int fake_nccl_splits() {
    std::lock_guard lock(state().mutex);
    return state().splits;
}

ncclResult_t ncclGetVersion(int* version) {
    *version = settings().version;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited" : "unhandled system error";
}
const char* ncclGetLastError(ncclComm_t) {
    return "said by the fake NCCL";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::lock_guard lock(state().mutex);
    const int number = ++state().num_ids;
    std::memset(id->internal, 0, sizeof id->internal);
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    int number = 0;
    std::memcpy(&number, id.internal, sizeof number);
    std::shared_ptr<Hub> hub;
    {
        std::lock_guard lock(state().mutex);
        if (number < 1 || number > state().num_ids) return ncclInvalidArgument;
        std::shared_ptr<Hub>& entry = state().hubs[number];
        if (!entry) entry = make_hub(size);
        hub = entry;
        state().max_ctas = config->maxCTAs;
        ++state().open;
        ++state().inits;
    }
    if (hub->size != size || rank < 0 || rank >= size) return ncclInvalidArgument;
    wait_for_ever_if(settings().hangs);
    *comm = join(hub, rank);
    return ncclSuccess;
}
// Members of a color are the ones that call in one round of the parent, ordered by their keys. The keys must
// be 0, 1, …, as ours are.
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm, ncclConfig_t* config) {
    Hub& all = *parent->hub;
    {
        std::lock_guard lock(all.mutex);
        all.keys[color].push_back(key);
    }
    all.meet();
    std::shared_ptr<Hub> hub;
    {
        std::lock_guard lock(all.mutex);
        std::vector<int> keys = all.keys[color];
        std::sort(keys.begin(), keys.end());
        for (size_t i = 0; i < keys.size(); ++i)
            if (keys[i] != static_cast<int>(i)) return ncclInvalidArgument;
        std::shared_ptr<Hub>& entry = all.parts[color];
        if (!entry) entry = make_hub(static_cast<int>(keys.size()));
        hub = entry;
    }
    {
        std::lock_guard lock(state().mutex);
        state().max_ctas = config->maxCTAs;
        ++state().open;
        ++state().splits;
    }
    *comm = join(hub, key);
    all.meet();
    {
        std::lock_guard lock(all.mutex);
        all.keys.clear();
        all.parts.clear();
    }
    all.meet();
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    std::lock_guard lock(state().mutex);
    --state().open;
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    {
        std::lock_guard lock(comm->hub->mutex);
        comm->hub->aborted = true;
        comm->hub->changed.notify_all();
    }
    return ncclCommDestroy(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
    *error = settings().async_error ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return reduce(__func__, input, output, 0, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return reduce(__func__, input, output, static_cast<size_t>(comm->rank) * count, count, type, op, comm,
                  stream);
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t part = count * size_of_type(type);
    return collective(__func__, comm, stream, {input}, output, part * static_cast<size_t>(comm->hub->size),
                      [=](const Inputs& inputs, std::vector<char>& result) {
                          for (size_t i = 0; i < inputs.size() && part > 0; ++i)
                              std::memcpy(result.data() + i * part, inputs[i][0], part);
                      });
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t bytes = count * size_of_type(type);
    return collective(__func__, comm, stream, {input}, output, bytes,
                      [=](const Inputs& inputs, std::vector<char>& result) {
                          if (bytes > 0)
                              std::memcpy(result.data(), inputs[static_cast<size_t>(root)][0], bytes);
                      });
}

ncclResult_t ncclGroupStart() {
    group = {};
    return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (peer < 0 || peer >= comm->hub->size) return ncclInvalidArgument;
    group.comm = comm;
    group.stream = stream;
    group.sends.push_back({peer, const_cast<void*>(data), count * size_of_type(type)});
    return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (peer < 0 || peer >= comm->hub->size) return ncclInvalidArgument;
    group.comm = comm;
    group.stream = stream;
    group.receives.push_back({peer, data, count * size_of_type(type)});
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (!group.comm) return ncclSuccess;  // an empty group
    if (settings().refuses) return ncclSystemError;
    enqueue("ncclGroupEnd", group.comm, group.stream,
            [hub = group.comm->hub, rank = group.comm->rank, sends = group.sends, receives = group.receives] {
                hub->pass(rank, sends, receives);
            });
    group = {};
    return ncclSuccess;
}

}  // extern "C"
