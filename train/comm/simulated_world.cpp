#include "train/comm/simulated_world.h"

#include <thread>

#include "kernels/device/philox.h"
#include "train/comm/host_task.h"

namespace speedrun {

class SimulatedCommunicator final : public Communicator {
  public:
    SimulatedCommunicator(std::unique_ptr<Communicator> inner, const SimulatedNetwork& network,
                          PassTime pass_time, PhiloxCounter counter)
        : Communicator(inner->name(), inner->group()),
          inner_(std::move(inner)),
          network_(network),
          pass_time_(std::move(pass_time)),
          counter_(counter) {}

    CollectiveCounts counts() const override { return inner_->counts(); }

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override {
        inner_->count_and_enqueue(call, stream);
        // The sleep follows the exchange: a collective starts when its last member arrives.
        const std::chrono::duration<double> wait(seconds(call));
        enqueue_on_host(stream, "network", [this, wait] { pass_time_(wait); });
    }

    double seconds(const CollectiveCall& call) {
        const uint32_t random = philox4x32(counter_, philox_key(network_.seed))[0];
        ++counter_[0];
        constexpr double kWords = 4294967296.0;  // 2^32
        return network_.model.seconds({.sent_bytes = wire_bytes_of(call), .ranks = size()}) +
               network_.jitter_s * (random / kWords);
    }

    double wire_bytes_of(const CollectiveCall& call) const {
        if (call.kind == Collective::all_to_all) return static_cast<double>(sent_bytes(call));
        const bool whole = call.kind == Collective::all_reduce || call.kind == Collective::broadcast;
        return wire_bytes(call.kind, size(), call.count * size_of(call.dtype) * (whole ? 1 : size()));
    }

    const std::unique_ptr<Communicator> inner_;
    const SimulatedNetwork network_;
    const PassTime pass_time_;
    PhiloxCounter counter_;  // call, communicator, rank, 0
};

namespace {

class SimulatedWorld final : public World {
  public:
    SimulatedWorld(World& inner, const SimulatedNetwork& network, PassTime pass_time)
        : inner_(inner), network_(network), pass_time_(std::move(pass_time)) {}

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    int local_rank() const override { return inner_.local_rank(); }
    int local_size() const override { return inner_.local_size(); }
    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        const PhiloxCounter counter{0, num_connected_++, static_cast<uint32_t>(rank()), 0};
        return std::make_unique<SimulatedCommunicator>(inner_.connect(name, group), network_, pass_time_,
                                                       counter);
    }
    std::vector<std::string> all_gather(const std::string& text) override { return inner_.all_gather(text); }
    std::vector<std::string> gather(const std::string& text) override { return inner_.gather(text); }
    void abort(ExitCode code, const std::string& reason) override { inner_.abort(code, reason); }
    void finish() override { inner_.finish(); }

  private:
    World& inner_;
    const SimulatedNetwork network_;
    const PassTime pass_time_;
    uint32_t num_connected_ = 0;
};

}  // namespace

std::optional<SimulatedNetwork> simulated_network(const ParallelConfig& config) {
    if (!config.simulates()) return std::nullopt;
    return SimulatedNetwork{.model = {config.simulate_latency_us * 1e-6, config.simulate_gbytes_per_s * 1e9},
                            .jitter_s = config.simulate_jitter_us * 1e-6};
}

void sleep_for(std::chrono::duration<double> time) {
    std::this_thread::sleep_for(time);
}

std::unique_ptr<World> make_simulated_world(World& world, const SimulatedNetwork& network,
                                            PassTime pass_time) {
    return std::make_unique<SimulatedWorld>(world, network, std::move(pass_time));
}

}  // namespace speedrun
