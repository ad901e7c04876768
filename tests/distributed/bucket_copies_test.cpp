// Ranks with equal state of a bucket, on every mesh of few ranks: exactly one of them writes and counts it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/distributed/thread_world.h"
#include "tests/sanitized.h"
#include "tests/train/cut_table.h"
#include "tests/train/small_model.h"
#include "train/checkpoint/state_pieces.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing::bucket_copies_test {

constexpr int kMaxRanks = kSanitized ? 6 : 16;
constexpr Strategy kStrategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3};

std::vector<Mesh> meshes() {
    std::vector<Mesh> all;
    for (int r = 1; r <= kMaxRanks; ++r)
        for (int s = 1; r * s <= kMaxRanks; ++s)
            for (int c = 1; r * s * c <= kMaxRanks; ++c)
                for (const int t : {1, 2, 3, 6})
                    if (r * s * c * t <= kMaxRanks) all.push_back(Mesh({r, s, c, t}));
    return all;
}

// Muon on whole matrices, in a group of their own.
OptimizersConfig optimizers(bool muon) {
    OptimizersConfig config;
    config.groups = {optimizer_group(muon ? OptimizerKind::muon : OptimizerKind::adamw,
                                     {"qkv.weight", "up.weight", "down.weight", "out.weight"}),
                     optimizer_group(OptimizerKind::adamw, {"*"})};
    return config;
}

// One rank's buckets.
struct View {
    Ranks ranks;
    ParameterTable table;
    BucketLayout layout;

    View(const Mesh& mesh, Strategy strategy, bool muon, World& world)
        : ranks(mesh, sharing(strategy), &world),
          table(cut_table({.size = mesh.size(Axis::tensor), .index = coordinate(Axis::tensor)})),
          layout(table, bucket_rules(ranks, table, optimizers(muon))) {}

    static Sharing sharing(Strategy strategy) { return {.strategy = strategy, .bucket_bytes = 400}; }
    int coordinate(Axis axis) const {
        return ranks.mesh().coordinates(ranks.rank())[static_cast<size_t>(axis)];
    }
    // Key of the state that this rank holds of a bucket: (tensor slice, shard).
    std::pair<int, int> held(const Bucket& bucket) const {
        const bool cut = !bucket.first().cut.all();
        return {cut ? coordinate(Axis::tensor) : 0, bucket.index};
    }
};

// Calls check with the views of all ranks, for each mesh, strategy and kind of optimizer.
template <class Check>
void for_each_mesh(Check&& check) {
    std::map<int, std::vector<std::unique_ptr<World>>> worlds;
    for (const Mesh& mesh : meshes()) {
        auto& world = worlds[mesh.world_size()];
        if (world.empty()) world = make_thread_worlds(mesh.world_size());
        for (const Strategy strategy : kStrategies) {
            for (const bool muon : {false, true}) {
                std::vector<std::unique_ptr<View>> views;
                for (const auto& of_rank : world)
                    views.push_back(std::make_unique<View>(mesh, strategy, muon, *of_rank));
                check(views,
                      fmt::format("{} {} {}", mesh.describe(), word_of(strategy), muon ? "muon" : "adamw"));
            }
        }
    }
}

using Views = std::vector<std::unique_ptr<View>>;

TEST(BucketCopiesTest, ExactlyOneCopyWrites) {
    for_each_mesh([](const Views& views, const std::string& what) {
        for (const Bucket& bucket : views.front()->layout.all()) {
            std::map<std::pair<int, int>, std::set<int>> indices;
            std::map<std::pair<int, int>, int> counts, writers;
            for (const auto& view : views) {
                const Bucket& own = view->layout[bucket.id];
                const Copies copies = copies_of(own, view->ranks);
                EXPECT_TRUE(indices[view->held(own)].insert(copies.index).second) << what;
                counts[view->held(own)] = copies.count;
                writers[view->held(own)] += writes_bucket(view->ranks, own);
            }
            const bool cut = !bucket.first().cut.all();
            const int parts = cut ? views.front()->ranks.mesh().size(Axis::tensor) : 1;
            ASSERT_EQ(indices.size(), static_cast<size_t>(parts * bucket.num_shards)) << what;
            for (const auto& [held, own] : indices) {
                EXPECT_EQ(static_cast<int>(own.size()), counts[held]) << what;
                EXPECT_EQ(*own.rbegin(), counts[held] - 1) << what;
                EXPECT_EQ(writers[held], 1) << what << ": " << bucket.name();
            }
        }
    });
}

// Copies are numbered in rank order, shard by shard. Checkpoint files of a run without a tensor axis keep their
// layout.
TEST(BucketCopiesTest, CopiesAreNumberedInRankOrder) {
    for_each_mesh([](const Views& views, const std::string& what) {
        if (views.front()->ranks.mesh().size(Axis::tensor) > 1) return;
        for (const auto& view : views) {
            for (const Bucket& bucket : view->layout.all()) {
                const Copies copies = copies_of(bucket, view->ranks);
                EXPECT_EQ(copies.count, view->ranks.size() / bucket.num_shards) << what;
                EXPECT_EQ(copies.index, view->ranks.rank() / bucket.num_shards) << what;
            }
        }
    });
}

// Along the axes of the norm, each distinct term is added exactly once.
TEST(BucketCopiesTest, ExactlyOneCopyAddsNormTerm) {
    for_each_mesh([](const Views& views, const std::string& what) {
        const Mesh& mesh = views.front()->ranks.mesh();
        const AxisSet axes = norm_axes(views.front()->layout, views.front()->ranks);
        for (const auto& view : views) EXPECT_EQ(norm_axes(view->layout, view->ranks), axes) << what;
        EXPECT_EQ(axes.contains(Axis::tensor), mesh.size(Axis::tensor) > 1) << what;
        for (const auto& view : views) {
            for (const Bucket& bucket : view->layout.all()) {
                std::map<std::pair<int, int>, int> adds;
                for (const int rank : mesh.group(view->ranks.rank(), axes).ranks) {
                    const View& other = *views[static_cast<size_t>(rank)];
                    adds[other.held(other.layout[bucket.id])] +=
                        adds_norm_term(other.layout[bucket.id], axes, other.ranks);
                }
                const bool cut = !bucket.first().cut.all();
                EXPECT_EQ(adds.size(),
                          static_cast<size_t>((cut ? mesh.size(Axis::tensor) : 1) * bucket.num_shards))
                    << what;
                for (const auto& [held, times] : adds) EXPECT_EQ(times, 1) << what << ": " << bucket.name();
            }
        }
    });
}

TEST(BucketCopiesTest, NormIsSummedOverShards) {
    for_each_mesh([](const Views& views, const std::string& what) {
        const View& view = *views.front();
        const Mesh& mesh = view.ranks.mesh();
        if (mesh.size(Axis::tensor) > 1) return;
        bool cut = false;
        for (const Bucket& bucket : view.layout.all()) cut |= bucket.num_shards > 1;
        const AxisSet among = view.ranks.sharing().strategy == Strategy::ddp
                                  ? AxisSet{Axis::replicate, Axis::shard, Axis::context}
                                  : AxisSet{Axis::shard, Axis::context};
        EXPECT_EQ(norm_axes(view.layout, view.ranks), cut ? mesh.larger_than_one(among) : AxisSet{}) << what;
        const BucketCollectives row = step_collectives(view.layout, view.ranks, DType::bf16).back();
        EXPECT_EQ(row.collectives.size(), static_cast<size_t>(mesh.world_size() > 1) + cut) << what;
    });
}

}  // namespace speedrun::testing::bucket_copies_test
