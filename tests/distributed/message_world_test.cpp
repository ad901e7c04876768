// Ranks as threads that exchange messages (train/comm/message_world.h): the conformance cases with reductions of one
// slice and of many.
#include "train/comm/message_world.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/distributed/conformance.h"
#include "tests/distributed/message_hub.h"
#include "tests/sanitized.h"

namespace speedrun::testing::message_world_test {

class Transport final : public MessageTransport {
  public:
    Transport(MessageHub& hub, int rank, int size) : hub_(hub), rank_(rank), size_(size) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    int local_rank() const override { return rank_; }
    int local_size() const override { return size_; }
    std::unique_ptr<MessageChannel> open_channel() override {
        return std::make_unique<HubChannel>(HubPlace{hub_, rank_, size_, channels_++});
    }
    void close() override {}
    [[noreturn]] void kill_all(int) noexcept override { std::abort(); }

  private:
    MessageHub& hub_;
    const int rank_, size_;
    int channels_ = 0;
};

struct WorldKind {
    int size;
    int64_t slice_bytes;
};

class MessageWorldTest : public ::testing::TestWithParam<std::tuple<WorldKind, ConformanceCase>> {};

TEST_P(MessageWorldTest, Conforms) {
    const auto& [kind, conformance] = GetParam();
    MessageHub hub;
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kind.size; ++rank) {
        ranks.emplace_back([&, &kind = kind, &conformance = conformance, rank] {
            const auto world =
                make_message_world(std::make_unique<Transport>(hub, rank, kind.size), {}, kind.slice_bytes);
            conformance.run(*world);
            world->finish();
        });
    }
}

std::vector<WorldKind> world_kinds() {
    if (kSanitized) return {{3, 1024}};
    return {{3, 1024}, {2, 65536}};
}

INSTANTIATE_TEST_SUITE_P(Slices, MessageWorldTest,
                         ::testing::Combine(::testing::ValuesIn(world_kinds()),
                                            ::testing::ValuesIn(conformance_cases())),
                         [](const auto& info) {
                             const WorldKind& kind = std::get<0>(info.param);
                             return "ranks" + std::to_string(kind.size) + "_bytes" +
                                    std::to_string(kind.slice_bytes) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace speedrun::testing::message_world_test
