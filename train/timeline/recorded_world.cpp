#include "train/timeline/recorded_world.h"

#include <utility>

namespace speedrun {

namespace {

class RecordedCommunicator final : public Communicator {
  public:
    RecordedCommunicator(const std::string& name, const Group& group, const HearCollective& hear)
        : Communicator(name, group), hear_(hear) {}

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override { hear_(*this, call, stream); }

    const HearCollective& hear_;
};

class RecordedWorld final : public World {
  public:
    RecordedWorld(int size, HearCollective hear) : size_(size), hear_(std::move(hear)) {}

    int rank() const override { return 0; }
    int size() const override { return size_; }
    int local_rank() const override { return 0; }
    int local_size() const override { return 1; }
    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        return std::make_unique<RecordedCommunicator>(name, group, hear_);
    }
    std::vector<std::string> all_gather(const std::string& text) override {
        return std::vector<std::string>(static_cast<size_t>(size_), text);
    }
    void abort(ExitCode, const std::string&) override {}
    void finish() override {}

  private:
    const int size_;
    const HearCollective hear_;
};

}  // namespace

std::unique_ptr<World> make_recorded_world(int size, HearCollective hear) {
    return std::make_unique<RecordedWorld>(size, std::move(hear));
}

}  // namespace speedrun
