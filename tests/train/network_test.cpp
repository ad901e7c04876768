// Collective times compared with hand-computed ones, and network files.
// Covers: train/timeline/network_json.cpp
#include "train/timeline/network.h"
#include "tests/errors.h"

#include "tests/temp_dir.h"

namespace speedrun::testing::network_test {

constexpr double kRounding = 1e-12;  // relative; rounding of a few products

Network plain() {
    return {.ranks_per_host = 4, .start_us = 10, .inside = {1, 100}, .between = {5, 10}};
}

// Ranks 0, kStride, 2 kStride, …
template <int kStride = 1>
Group group_of(int size) {
    Group group;
    for (int i = 0; i < size; ++i) group.ranks.push_back(i * kStride);
    return group;
}

CollectiveTime time_of(Collective kind, int64_t payload, const Group& group,
                       const Network& network = plain()) {
    return collective_time(network, {.kind = kind, .group = 0, .payload_bytes = payload}, group);
}

TEST(NetworkTest, SeesHowAGroupLiesOnHosts) {
    const auto expect = [](const Group& group, int ranks, int hosts, int on_a_host) {
        const HostSpan span = span_of(group, 4);
        EXPECT_EQ(span.ranks, ranks);
        EXPECT_EQ(span.hosts, hosts);
        EXPECT_EQ(span.on_a_host, on_a_host);
    };
    expect(group_of(4), 4, 1, 4);
    expect(group_of(16), 16, 4, 4);
    expect(group_of(6), 6, 2, 4);
    expect(group_of<4>(4), 4, 4, 1);
    expect(group_of<2>(4), 4, 2, 2);
}

TEST(NetworkTest, TimesRingsByHopsAndTheSlowerLink) {
    // One host: 3 hops, 3/4 of the bytes.
    const CollectiveTime inside = time_of(Collective::reduce_scatter, 4'000'000, group_of(4));
    EXPECT_EQ(inside.algorithm, CommunicationAlgorithm::ring);
    EXPECT_NEAR(inside.latency_s, 13e-6, 13e-6 * kRounding);
    EXPECT_NEAR(inside.inside_s, 3e6 / 100e9, 3e-5 * kRounding);
    EXPECT_EQ(inside.between_s, 0);
    // Two hosts: 6 hops inside and 1 between. 7/8 of the bytes leave each host, through 4 ranks.
    const CollectiveTime both = time_of(Collective::all_gather, 8'000'000, group_of(8));
    EXPECT_NEAR(both.latency_s, (10 + 6 + 5) * 1e-6, 1e-5 * kRounding);
    EXPECT_NEAR(both.inside_s, 7e6 / 100e9, 7e-5 * kRounding);
    EXPECT_NEAR(both.between_s, 7e6 / 4 / 10e9, 2e-4 * kRounding);
    EXPECT_EQ(both.seconds(), both.latency_s + both.between_s);
    // With one rank on each of two hosts, all bytes use that rank's link.
    const CollectiveTime alone = time_of(Collective::all_reduce, 1'000'000, group_of<4>(2));
    EXPECT_EQ(alone.inside_s, 0);
    EXPECT_NEAR(alone.between_s, 1e6 / 10e9, 1e-4 * kRounding);
    EXPECT_EQ(time_of(Collective::all_reduce, 1000, group_of(1)).seconds(), 0);
}

TEST(NetworkTest, SumsOfFewBytesOverManyRanksGoByTree) {
    const Group many = group_of(256);
    const CollectiveTime small = time_of(Collective::all_reduce, 1000, many);
    EXPECT_EQ(small.algorithm, CommunicationAlgorithm::tree);
    // 64 hosts: 6 levels of 2 x 5 us, up and down. Inside: 3 hops, up and down.
    EXPECT_NEAR(small.latency_s, (10 + 2 * 3 * 1 + 2 * 6 * 2 * 5) * 1e-6, 1e-4 * kRounding);
    EXPECT_EQ(time_of(Collective::all_reduce, 10'000'000'000, many).algorithm, CommunicationAlgorithm::ring);
    EXPECT_EQ(time_of(Collective::all_gather, 1000, many).algorithm, CommunicationAlgorithm::ring);
    EXPECT_EQ(time_of(Collective::barrier, 0, many).algorithm, CommunicationAlgorithm::tree);
}

TEST(NetworkTest, ExchangesTakeTheBusierDirectionOfEachLink) {
    const RecordedCollective exchange{
        .kind = Collective::all_to_all,
        .group = 0,
        .payload_bytes = 0,
        .sends = {{1, 1000}, {5, 3000}},
        .receives = {{2, 4000}, {6, 1000}},
    };
    const CollectiveTime time = collective_time(plain(), exchange, group_of(8));
    EXPECT_EQ(time.algorithm, CommunicationAlgorithm::direct);
    EXPECT_NEAR(time.latency_s, 15e-6, 15e-6 * kRounding);
    EXPECT_NEAR(time.inside_s, 4000 / 100e9, 1e-7 * kRounding);
    EXPECT_NEAR(time.between_s, 3000 / 10e9, 1e-6 * kRounding);
    EXPECT_EQ(exchange.sent_bytes(8), 4000);
}

TEST(NetworkTest, TheLargestOfManyIsLate) {
    EXPECT_EQ(straggler_factor(0.01, 1), 1);
    EXPECT_EQ(straggler_factor(0, 100), 1);
    // Expected maximum of n standard normal values: 1.4236 for 8, 2.5076 for 100 (Teichroew 1956). Blom's formula is
    // within 1%.
    EXPECT_NEAR(straggler_factor(1, 8), 1 + 1.4236, 0.015);
    EXPECT_NEAR(straggler_factor(1, 100), 1 + 2.5076, 0.025);
}

TEST(NetworkTest, ReadsAFile) {
    const TempDir dir;
    const std::string path = dir.file("network.json");
    std::ofstream(path) << R"({"name": "n", "ranks_per_host": 4, "between": {"gb_s": 12.5}})";
    const Network network = read_network(path);
    EXPECT_EQ(network.name, "n");
    EXPECT_EQ(network.ranks_per_host, 4);
    EXPECT_EQ(network.between.gb_s, 12.5);
    EXPECT_EQ(network.between.latency_us, default_network().between.latency_us);
    EXPECT_EQ(network.inside.gb_s, default_network().inside.gb_s);
    EXPECT_THROW(read_network(path + ".no"), Error);
}

TEST(NetworkTest, DefaultsFollowTheGpusLinks) {
    EXPECT_NE(default_network(find_gpu_model("h100")).name.find("NVLink"), std::string::npos);
    EXPECT_EQ(default_network(find_gpu_model("h100")).inside.gb_s, 360);
    EXPECT_EQ(default_network(find_gpu_model("a100")).inside.gb_s, 240);
    for (const char* gpu : {"4090", "5090"}) {
        const Network network = default_network(find_gpu_model(gpu));
        EXPECT_NE(network.name.find("PCIe"), std::string::npos);
        EXPECT_LT(network.inside.gb_s, 32) << gpu;
        EXPECT_GT(network.inside.latency_us, default_network().inside.latency_us);
    }
}

TEST(NetworkTest, RefusesWhatIsNoNetwork) {
    const auto refuses = [](const char* text, const char* what) {
        expect_error(ExitCode::data, {what}, [&] { parse_network(text, "file"); });
    };
    refuses("", "file: ");
    refuses("[]", "expected an object");
    refuses(R"({"inside": 3})", "inside: expected an object");
    refuses(R"({"inside": {"gb": 3}})", "unknown key 'gb'");
    refuses(R"({"between": {"gb_s": -1}})", "between: gb_s: expected a number from 0");
    refuses(R"({"ranks_per_host": 0})", "ranks_per_host: expected a number from 1");
    refuses(R"({"ranks_per_host": 1.5})", "expected a whole number");
    refuses(R"({"spread": "much"})", "spread: expected a number");
    refuses(R"({"device_share": 2})", "device_share: expected a number from 0 to 1");
    refuses(R"({"speed": 1})", "unknown key 'speed'");
}

}  // namespace speedrun::testing::network_test
