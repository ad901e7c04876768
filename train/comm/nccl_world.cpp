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
    // chain: recorded after each collective of all communicators, which the next one waits for; null: NCCL orders them.
    NcclCommunicator(std::string name, const Group& group, const NcclApi& api, ncclComm_t comm,
                     std::shared_ptr<AllRanks> all, std::shared_ptr<NcclWatch> watch,
                     std::unique_ptr<Communicator> roll_call, Device& device, std::shared_ptr<Event> chain)
        : Communicator(std::move(name), group),
          api_(api),
          all_(std::move(all)),
          comm_(comm),
          watch_(std::move(watch)),
          roll_call_(std::move(roll_call)),
          device_(device),
          chain_(std::move(chain)),
          word_(device, "barrier of " + this->name(), MemoryCategory::workspace, sizeof(float)) {
        watch_->add(comm_, this->name(), [this] { return find_missing(); });
    }

    ~NcclCommunicator() override {
        if (memory_bytes_ > 0)
            device_.memory().remove(memory_name(), MemoryCategory::workspace, memory_bytes_);
        if (!watch_->remove(comm_)) return;  // already aborted
        // Destroying waits for the other members, which do not call it after an error on this rank.
        if (std::uncaught_exceptions() > 0)
            api_.comm_abort(comm_);
        else
            api_.comm_destroy(comm_);
    }

    // Runs each kind of collective once, with one value per pair of members. NCCL connects members at the first call of a
    // kind, which blocks the host and allocates memory. Collective.
    void warm_up() {
        const auto stream = device_.create_stream("warm-up of " + name());
        const Buffer input(device_, "warm-up", MemoryCategory::workspace, size() * int64_t{sizeof(float)});
        const Buffer output(device_, "warm-up", MemoryCategory::workspace, input.bytes());
        const auto exchange = std::make_shared<Exchange>();
        for (int member = 0; member < size(); ++member) {
            exchange->sends.push_back({member, member, 1});
            exchange->receives.push_back({member, member, 1});
        }
        for (const Collective kind :
             {Collective::all_reduce, Collective::broadcast, Collective::reduce_scatter,
              Collective::all_gather, Collective::all_to_all}) {
            CollectiveCall call{.kind = kind, .output = output.data(), .input = input.data(), .count = 1};
            if (kind == Collective::all_reduce || kind == Collective::broadcast) call.input = output.data();
            if (kind == Collective::all_to_all) {
                call.count = 0;
                call.exchange = exchange;
            }
            run(call, *stream);
        }
        stream->synchronize();
        watch_->throw_if_lost();
    }
    // Enters NCCL's own memory of this communicator in the memory table. bytes: decrease of the GPU's free memory while it was
    // created, which contains a few buffers of warm_up().
    void set_memory(int64_t bytes) {
        constexpr int64_t kLeast = 1 << 20;
        if (bytes < kLeast) return;
        memory_bytes_ = bytes;
        device_.memory().add(memory_name(), MemoryCategory::workspace, bytes);
    }

  private:
    std::string memory_name() const { return "NCCL, " + name(); }

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
        begin_gpu_span(stream, name_of(call.kind));
        run(call, stream);
        end_gpu_span(stream);
        if (call.kind == Collective::all_to_all) return count_sent(call.kind, sent_bytes(call));
        const bool whole = call.kind == Collective::all_reduce || call.kind == Collective::broadcast;
        const int64_t payload = call.count * size_of(call.dtype) * (whole ? 1 : size());
        count_sent(call.kind, std::llround(wire_bytes(call.kind, size(), payload)));
    }

    void run(const CollectiveCall& call, Stream& stream) {
        const bool watched = !is_captured(stream);
        if (chain_) stream.wait(*chain_);
        if (watched) watch_->begin(comm_, call.describe(), stream);
        {
            const auto inside = watch_->call();
            launch(call, static_cast<cudaStream_t>(native_gpu_stream(stream)));
        }
        if (watched) watch_->end(comm_, stream);
        if (chain_) stream.record(*chain_);
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
    const std::shared_ptr<Event> chain_;
    const Buffer word_;  // dummy value of barriers
    int64_t memory_bytes_ = 0;
};

class NcclWorld final : public WrappedWorld {
  public:
    NcclWorld(World& inner, Device& device, const NcclOptions& options)
        : WrappedWorld(inner),
          api_(loaded_api()),
          device_(device),
          options_(options),
          chain_(api_.request_launch_order() ? nullptr : std::shared_ptr<Event>(device.create_event())),
          watch_(std::make_shared<NcclWatch>(
              api_, device, options.timeout_s, [&inner](const std::string& reason) {
                  std::fprintf(stderr, "error: rank %d: %s\n", inner.rank(), reason.c_str());
                  inner.abort(ExitCode::communication, reason);  // does not return if ranks are processes
              })) {}

    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        expect_same_on_all_ranks(inner_, "communicators", {name});
        const int64_t available = device_.available_bytes();
        if (!all_) all_ = open();
        ncclConfig_t config = this->config();
        const ncclComm_t comm =
            connected(fmt::format("'{}' (ranks {})", name, group.describe()), "ncclCommSplit",
                      [&api = api_, all = all_, color = group.ranks.front(), index = group.index,
                       config](ncclComm_t* comm) mutable {
                          return api.comm_split(all->comm(), color, index, comm, &config);
                      });
        auto roll_call = inner_.connect("roll call of " + name, group);
        auto communicator = std::make_unique<NcclCommunicator>(name, group, api_, comm, all_, watch_,
                                                               std::move(roll_call), device_, chain_);
        communicator->warm_up();
        communicator->set_memory(available - device_.available_bytes());
        return communicator;
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
    const std::shared_ptr<Event> chain_;
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
