#include "train/timeline/recorded_world.h"

#include <utility>

namespace speedrun {

namespace {

class RecordedCommunicator final : public Communicator {
  public:
    RecordedCommunicator(const std::string& name, const Group& group, const CollectiveCallback& on_collective)
        : Communicator(name, group), on_collective_(on_collective) {}

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override { on_collective_(*this, call, stream); }

    const CollectiveCallback& on_collective_;
};

class RecordedWorld final : public World {
  public:
    RecordedWorld(int size, CollectiveCallback on_collective)
        : size_(size), on_collective_(std::move(on_collective)) {}

    int rank() const override { return 0; }
    int size() const override { return size_; }
    int local_rank() const override { return 0; }
    int local_size() const override { return 1; }
    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        return std::make_unique<RecordedCommunicator>(name, group, on_collective_);
    }
    std::vector<std::string> all_gather(const std::string& text) override {
        return std::vector<std::string>(static_cast<size_t>(size_), text);
    }
    void abort(ExitCode, const std::string&) override {}
    void finish() override {}

  private:
    const int size_;
    const CollectiveCallback on_collective_;
};

}  // namespace

std::unique_ptr<World> make_recorded_world(int size, CollectiveCallback on_collective) {
    return std::make_unique<RecordedWorld>(size, std::move(on_collective));
}

}  // namespace speedrun
