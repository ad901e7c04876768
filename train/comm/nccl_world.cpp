#include "train/comm/nccl_world.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/device/gpu_interop.h"
#include "kernels/device/start_thread.h"
#include "train/comm/nccl_watch.h"
#include "train/comm/wrapped_world.h"

namespace speedrun {

namespace {

const NcclApi& loaded_api() {
    std::string why;
    const NcclApi* const api = load_nccl(why);
    if (!api) throw_usage("NCCL cannot be used: {}", why);
    return *api;
}

ncclDataType_t nccl_type(DType dtype) {
    return dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
}

// The parent of all communicators; no data is sent through it. Each communicator holds a reference. It is watched too, so that
// it is aborted with them when a rank is lost.
class AllRanks {
  public:
    AllRanks(const NcclApi& api, ncclComm_t comm, std::shared_ptr<NcclWatch> watch)
        : api_(api), comm_(comm), watch_(std::move(watch)) {
        watch_->add(comm_, "all ranks", [] { return std::string(); });
    }
    ~AllRanks() {
        if (!watch_->remove(comm_)) return;
        if (std::uncaught_exceptions() > 0)
            api_.comm_abort(comm_);
        else
            api_.comm_destroy(comm_);
    }
    AllRanks(const AllRanks&) = delete;
    AllRanks& operator=(const AllRanks&) = delete;
    ncclComm_t comm() const { return comm_; }

  private:
    const NcclApi& api_;
    const ncclComm_t comm_;
    const std::shared_ptr<NcclWatch> watch_;
};

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(std::string name, const Group& group, const NcclApi& api, ncclComm_t comm,
                     std::shared_ptr<AllRanks> all, std::shared_ptr<NcclWatch> watch,
                     std::unique_ptr<Communicator> roll_call, Device& device)
        : Communicator(std::move(name), group),
          api_(api),
          all_(std::move(all)),
          comm_(comm),
          watch_(std::move(watch)),
          roll_call_(std::move(roll_call)),
          device_(device) {
        watch_->add(comm_, this->name(), [this] { return find_missing(); });
    }

    ~NcclCommunicator() override {
        if (!watch_->remove(comm_)) return;  // already aborted
        // Destroying waits for the other members, which do not call it after an error on this rank.
        if (std::uncaught_exceptions() > 0)
            api_.comm_abort(comm_);
        else
            api_.comm_destroy(comm_);
    }

  private:
    // Every rank with a pending collective calls this, so the host's communicator finds the missing ranks.
    std::string find_missing() const {
        try {
            CpuDevice host(1);
            const auto stream = host.create_stream("roll call");
            roll_call_->barrier(*stream);
            stream->synchronize();
        } catch (const std::exception& error) {
            return error.what();
        }
        return "";
    }

    void enqueue(const CollectiveCall& call, Stream& stream) override {
        watch_->throw_if_lost();
        if (call.kind == Collective::barrier && word_.bytes() == 0)
            word_ = Buffer(device_, "barrier of " + name(), MemoryCategory::workspace, sizeof(float));
        begin_gpu_span(stream, name_of(call.kind));
        const bool watched = !is_captured(stream);
        if (watched) watch_->begin(comm_, call.describe(), stream);
        launch(call, static_cast<cudaStream_t>(native_gpu_stream(stream)));
        if (watched) watch_->end(comm_, stream);
        end_gpu_span(stream);
        if (call.kind == Collective::all_to_all) return count_sent(call.kind, sent_bytes(call));
        const bool whole = call.kind == Collective::all_reduce || call.kind == Collective::broadcast;
        const int64_t payload = call.count * size_of(call.dtype) * (whole ? 1 : size());
        count_sent(call.kind, std::llround(wire_bytes(call.kind, size(), payload)));
    }

    void launch(const CollectiveCall& call, cudaStream_t stream) {
        const auto count = static_cast<size_t>(call.count);
        const ncclDataType_t type = nccl_type(call.dtype);
        const auto check = [&](ncclResult_t result, const char* function) {
            api_.check(result, fmt::format("{} ({} on '{}')", function, call.describe(), name()));
        };
        switch (call.kind) {
            case Collective::all_reduce:
                // Non-negative values are ordered as their bits, so NaN is kept.
                if (call.reduction == Reduction::max) {
                    return check(
                        api_.all_reduce(call.input, call.output, count, ncclUint32, ncclMax, comm_, stream),
                        "ncclAllReduce");
                }
                return check(api_.all_reduce(call.input, call.output, count, type, ncclSum, comm_, stream),
                             "ncclAllReduce");
            case Collective::reduce_scatter:
                return check(
                    api_.reduce_scatter(call.input, call.output, count, type, ncclSum, comm_, stream),
                    "ncclReduceScatter");
            case Collective::all_gather:
                return check(api_.all_gather(call.input, call.output, count, type, comm_, stream),
                             "ncclAllGather");
            case Collective::all_to_all: {
                // ncclAlltoAll requires NCCL 2.28.
                const int64_t element = size_of(call.dtype);
                check(api_.group_start(), "ncclGroupStart");
                for (const Slice& slice : call.exchange->sends) {
                    check(api_.send(static_cast<const char*>(call.input) + slice.begin * element,
                                    static_cast<size_t>(slice.count), type, slice.member, comm_, stream),
                          "ncclSend");
                }
                for (const Slice& slice : call.exchange->receives) {
                    check(api_.receive(static_cast<char*>(call.output) + slice.begin * element,
                                       static_cast<size_t>(slice.count), type, slice.member, comm_, stream),
                          "ncclRecv");
                }
                return check(api_.group_end(), "ncclGroupEnd");
            }
            case Collective::broadcast:
                return check(api_.broadcast(call.input, call.output, count, type, call.root, comm_, stream),
                             "ncclBroadcast");
            case Collective::barrier:
                return check(
                    api_.all_reduce(word_.data(), word_.data(), 1, ncclFloat32, ncclSum, comm_, stream),
                    "ncclAllReduce");
        }
    }

    const NcclApi& api_;
    const std::shared_ptr<AllRanks> all_;
    const ncclComm_t comm_;
    const std::shared_ptr<NcclWatch> watch_;
    const std::unique_ptr<Communicator> roll_call_;
    Device& device_;
    Buffer word_;  // dummy value of barriers
};

class NcclWorld final : public WrappedWorld {
  public:
    NcclWorld(World& inner, Device& device, const NcclOptions& options)
        : WrappedWorld(inner),
          api_(loaded_api()),
          device_(device),
          options_(options),
          watch_(std::make_shared<NcclWatch>(
              api_, device, options.timeout_s, [&inner](const std::string& reason) {
                  std::fprintf(stderr, "error: rank %d: %s\n", inner.rank(), reason.c_str());
                  inner.abort(ExitCode::communication, reason);  // does not return if ranks are processes
              })) {}

    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        expect_same_on_all_ranks(inner_, "communicators", {name});
        if (!all_) all_ = open();
        ncclConfig_t config = this->config();
        const ncclComm_t comm =
            connected(fmt::format("'{}' (ranks {})", name, group.describe()), "ncclCommSplit",
                      [&api = api_, all = all_, color = group.ranks.front(), index = group.index,
                       config](ncclComm_t* comm) mutable {
                          return api.comm_split(all->comm(), color, index, comm, &config);
                      });
        auto roll_call = inner_.connect("roll call of " + name, group);
        return std::make_unique<NcclCommunicator>(name, group, api_, comm, all_, watch_, std::move(roll_call),
                                                  device_);
    }

  private:
    ncclConfig_t config() const {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
        if (options_.max_ctas > 0) config.maxCTAs = options_.max_ctas;
        return config;
    }

    std::shared_ptr<AllRanks> open() {
        ncclUniqueId id;
        std::string text;
        if (rank() == 0) {
            api_.check(api_.get_unique_id(&id), "ncclGetUniqueId");
            text.assign(id.internal, sizeof id.internal);
        }
        text = inner_.all_gather(text).front();
        if (text.size() != sizeof id.internal) throw_internal("rank 0 sent no NCCL id");
        std::memcpy(id.internal, text.data(), text.size());
        ncclConfig_t config = this->config();
        return std::make_shared<AllRanks>(
            api_,
            connected("all ranks", "ncclCommInitRankConfig",
                      [&api = api_, size = size(), rank = rank(), id, config](ncclComm_t* comm) mutable {
                          return api.comm_init(comm, size, id, rank, &config);
                      }),
            watch_);
    }

    // Returns the communicator created by `make`, called on its own thread: NCCL may wait for the whole group without a
    // timeout. The captures of `make` are released before the result is set: the last reference to the parent of all
    // communicators must not be released by a thread that is never joined.
    template <class Make>
    ncclComm_t connected(const std::string& what, const char* function, Make make) {
        std::promise<ncclComm_t> promise;
        std::future<ncclComm_t> made = promise.get_future();
        auto connect = [&device = device_, &api = api_, call = fmt::format("{} on {}", function, what),
                        make = std::move(make), promise = std::move(promise)]() mutable {
            try {
                use_gpu(device);
                ncclComm_t comm = nullptr;
                {
                    Make own = std::move(make);
                    api.check(own(&comm), call);
                }
                promise.set_value(comm);
            } catch (...) {
                promise.set_exception(std::current_exception());
            }
        };
        start_thread("connection of NCCL", std::move(connect)).detach();
        RunningClock clock(options_.start_timeout_s);
        Silence silence(clock);
        while (made.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
            if (!silence.exceeds(options_.start_timeout_s)) continue;
            throw Error(
                ExitCode::communication,
                fmt::format("NCCL did not connect {} within {:g} s (parallel.start_timeout_s): a rank "
                            "hangs or is gone",
                            what, options_.start_timeout_s));
        }
        return made.get();
    }

    const NcclApi& api_;
    Device& device_;
    const NcclOptions options_;
    const std::shared_ptr<NcclWatch> watch_;
    std::shared_ptr<AllRanks> all_;  // set by the first communicator
};

}  // namespace

std::string nccl_unavailable() {
    std::string why;
    return load_nccl(why) ? "" : why;
}

std::string nccl_version() {
    return loaded_api().version();
}

std::unique_ptr<World> make_nccl_world(World& world, Device& device, const NcclOptions& options) {
    return std::make_unique<NcclWorld>(world, device, options);
}

}  // namespace speedrun
