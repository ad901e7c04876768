// Who we are among the ranks of a run, and how they share the work: what the engine needs to know of it.
#pragma once

#include "data/context_part.h"
#include "train/comm/communicator.h"
#include "train/comm/mesh.h"
#include "train/parameters/tensor_cut.h"
#include "train/sharding/placement.h"

namespace speedrun {

// Value that nobody changes, only replaces as a whole. It holds what the config says; what the device says,
// the compute type above all, is in Runtime.
class Ranks {
  public:
    // One rank, alone.
    Ranks() : Ranks(Mesh(), Sharing()) {}
    // Ranks of a mesh that share a step in this way, which need not be resolved yet (usage errors: those of
    // resolve_sharing).
    // world: what they talk through, which must outlive what is built on it; null: one rank alone, or ranks
    // of which none runs. Throws unless the world has as many ranks as the mesh.
    Ranks(const Mesh& mesh, const Sharing& sharing, World* world = nullptr);

    // Copy that talks through another world of as many ranks, made for their devices or slowed down.
    Ranks with_world(World& world) const { return Ranks(mesh_, sharing_, &world); }
    // Copy that nobody runs: shapes and sizes are those of rank 0, and nothing is said to the others.
    Ranks without_world() const { return Ranks(mesh_, sharing_); }

    World* world() const { return world_; }
    const Mesh& mesh() const { return mesh_; }
    const Sharing& sharing() const { return sharing_; }  // resolved

    int rank() const { return world_ ? world_->rank() : 0; }
    int size() const { return world_ ? world_->size() : 1; }
    bool first() const { return rank() == 0; }
    // Ranks that work on different rows; those that share rows have the same number, and each its part of them.
    int num_data_ranks() const { return mesh_.size(Axis::replicate) * mesh_.size(Axis::shard); }
    int data_rank() const { return rank() / (mesh_.size(Axis::context) * mesh_.size(Axis::tensor)); }
    ContextPart part() const {
        return {.size = mesh_.size(Axis::context),
                .index = mesh_.coordinates(rank())[static_cast<size_t>(Axis::context)]};
    }

    TensorPart tensor() const {
        return {.size = mesh_.size(Axis::tensor),
                .index = mesh_.coordinates(rank())[static_cast<size_t>(Axis::tensor)],
                .sequence = sharing_.sequence_parallel && mesh_.size(Axis::tensor) > 1};
    }

  private:
    World* world_;
    Mesh mesh_;
    Sharing sharing_;
};

}  // namespace speedrun
