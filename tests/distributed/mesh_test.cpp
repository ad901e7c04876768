// Coordinates, groups and the reading of section `parallel`.
#include "train/comm/mesh.h"
#include "tests/errors.h"

#include <gtest/gtest.h>

#include "kernels/device/error.h"
#include "train/comm/even_split.h"

namespace speedrun::testing::mesh_test {

ParallelConfig parallel(int64_t replicate, std::string shard, int64_t context = 1, int64_t tensor = 1) {
    ParallelConfig config;
    config.replicate = replicate;
    config.shard = std::move(shard);
    config.context = context;
    config.tensor = tensor;
    return config;
}

void expect_usage_error(const ParallelConfig& config, int world_size, const std::string& fragment) {
    expect_error(ExitCode::usage, {fragment}, [&] { resolve_mesh(config, world_size); });
}

TEST(MeshTest, TensorVariesFastestAndReplicateSlowest) {
    const Mesh mesh({2, 3, 2, 2});
    EXPECT_EQ(mesh.world_size(), 24);
    EXPECT_EQ(mesh.coordinates(0), (MeshCoordinates{0, 0, 0, 0}));
    EXPECT_EQ(mesh.coordinates(1), (MeshCoordinates{0, 0, 0, 1}));
    EXPECT_EQ(mesh.coordinates(2), (MeshCoordinates{0, 0, 1, 0}));
    EXPECT_EQ(mesh.coordinates(4), (MeshCoordinates{0, 1, 0, 0}));
    EXPECT_EQ(mesh.coordinates(12), (MeshCoordinates{1, 0, 0, 0}));
    EXPECT_EQ(mesh.coordinates(23), (MeshCoordinates{1, 2, 1, 1}));
    for (int rank = 0; rank < 24; ++rank) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
    EXPECT_THROW(mesh.coordinates(24), Error);
    EXPECT_THROW(mesh.coordinates(-1), Error);
    EXPECT_THROW(mesh.rank({0, 3, 0, 0}), Error);
    EXPECT_THROW(Mesh({2, 0, 1, 1}), Error);
}

TEST(MeshTest, GroupsOf32RankExample) {
    const Mesh mesh({4, 8, 1, 1});
    const Group shard = mesh.group(19, {Axis::shard});
    EXPECT_EQ(shard.ranks, std::vector<int>({16, 17, 18, 19, 20, 21, 22, 23}));
    EXPECT_EQ(shard.index, 3);
    const Group replicate = mesh.group(19, {Axis::replicate});
    EXPECT_EQ(replicate.describe(), "3 11 19 27");
    EXPECT_EQ(replicate.index, 2);
    const Group all = mesh.group(19, {Axis::replicate, Axis::shard});
    EXPECT_EQ(all.size(), 32);
    EXPECT_EQ(all.index, 19);
    EXPECT_EQ(mesh.group(19, {}).ranks, std::vector<int>({19}));
    EXPECT_EQ(mesh.group(19, {Axis::tensor}).ranks, std::vector<int>({19}));
}

// Groups along any subset of axes partition the ranks, and all members see the same group.
TEST(MeshTest, GroupsPartitionWorld) {
    const Mesh mesh({2, 3, 2, 2});
    for (unsigned bits = 0; bits < 16; ++bits) {
        AxisSet axes;
        for (int axis = 0; axis < kNumAxes; ++axis) {
            if (bits >> axis & 1u) axes.add(kAxes[static_cast<size_t>(axis)]);
        }
        for (int rank = 0; rank < mesh.world_size(); ++rank) {
            const Group group = mesh.group(rank, axes);
            EXPECT_EQ(group.size(), mesh.size(axes)) << axes.describe();
            EXPECT_EQ(group.ranks[static_cast<size_t>(group.index)], rank);
            for (const int other : group.ranks) EXPECT_EQ(mesh.group(other, axes).ranks, group.ranks);
        }
    }
}

TEST(MeshTest, Resolve) {
    EXPECT_EQ(resolve_mesh(parallel(1, "auto"), 1).describe(),
              "replicate 1 x shard 1 x context 1 x tensor 1");
    EXPECT_EQ(resolve_mesh(parallel(1, "auto"), 8).size(Axis::shard), 8);
    EXPECT_EQ(resolve_mesh(parallel(4, "auto"), 32).size(Axis::shard), 8);
    EXPECT_EQ(resolve_mesh(parallel(2, "3"), 6).size(Axis::shard), 3);

    expect_usage_error(parallel(2, "3"), 8,
                       "replicate 2 x shard 3 x context 1 x tensor 1 is not the number of ranks, 8");
    expect_usage_error(parallel(3, "auto"), 8, "8 ranks cannot be cut into 3 groups of equal size");
    expect_usage_error(parallel(16, "auto"), 8, "8 ranks cannot be cut into 16 groups");
    expect_usage_error(parallel(0, "auto"), 8, "parallel.replicate is 0");
    EXPECT_EQ(resolve_mesh(parallel(2, "auto", 2), 8).describe(),
              "replicate 2 x shard 2 x context 2 x tensor 1");
    expect_usage_error(parallel(1, "auto", 3), 8, "8 ranks cannot be cut into 3 groups");
    expect_usage_error(parallel(1, "2", 2), 8, "context 2 x tensor 1 is not the number of ranks, 8");
    EXPECT_EQ(resolve_mesh(parallel(1, "auto", 1, 4), 8).describe(),
              "replicate 1 x shard 2 x context 1 x tensor 4");
    expect_usage_error(parallel(1, "auto", 1, 3), 8, "8 ranks cannot be cut into 3 groups of equal size");
    expect_usage_error(parallel(1, "4294967297"), 1, "is not the number of ranks, 1");  // 2^32 + 1
    for (const char* shard : {"", "0", "-8", "8x", "all", "99999999999999999999"})
        expect_usage_error(parallel(1, shard), 8, "want \"auto\" or a number");
}

TEST(EvenSplitTest, UnevenSplitHasShortAndEmptyParts) {
    const EvenSplit vocab{257, 8};  // 33 rows each: seven full parts, 26 rows in the last
    EXPECT_EQ(vocab.per_part(), 33);
    EXPECT_EQ(vocab.padded(), 264);
    EXPECT_EQ(vocab.padding(), 7);
    EXPECT_EQ(vocab.begin(7), 231);
    EXPECT_EQ(vocab.size(7), 26);
    const EvenSplit few{5, 4};  // 2 2 1 0
    EXPECT_EQ(few.size(1), 2);
    EXPECT_EQ(few.size(2), 1);
    EXPECT_EQ(few.size(3), 0);
    EXPECT_EQ(few.begin(3), 5);
    const EvenSplit none{0, 4};
    EXPECT_EQ(none.padded(), 0);
    EXPECT_EQ(none.size(3), 0);
}

}  // namespace speedrun::testing::mesh_test
