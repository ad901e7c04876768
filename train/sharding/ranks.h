// Ranks: this rank's position among the ranks of a run, and how they share the work.
#pragma once

#include "data/context_slice.h"
#include "train/comm/communicator.h"
#include "train/comm/mesh.h"
#include "train/parameters/tensor_cut.h"
#include "train/sharding/placement.h"

namespace speedrun {

// Immutable value from the config. Properties of the device, such as the compute dtype, are in Runtime.
class Ranks {
  public:
    // A single rank.
    Ranks() : Ranks(Mesh(), Sharing()) {}
    // Ranks of a mesh. `sharing` may be unresolved (usage errors of resolve_sharing). world: communication between the
    // ranks, which must outlive all users; null: a single rank, or ranks that do not run. Throws unless world and mesh
    // have the same number of ranks.
    Ranks(const Mesh& mesh, const Sharing& sharing, World* world = nullptr);

    // Returns a copy with another world of the same size, such as one for device tensors or with a simulated
    // network.
    Ranks with_world(World& world) const { return Ranks(mesh_, sharing_, &world); }
    // Returns a copy without communication: shapes and sizes equal rank 0's.
    Ranks without_world() const { return Ranks(mesh_, sharing_); }

    World* world() const { return world_; }
    const Mesh& mesh() const { return mesh_; }
    const Sharing& sharing() const { return sharing_; }  // resolved

    int rank() const { return world_ ? world_->rank() : 0; }
    int size() const { return world_ ? world_->size() : 1; }
    bool first() const { return rank() == 0; }
    // Ranks with different rows; ranks that share rows have equal indices.
    int num_data_ranks() const { return mesh_.size(Axis::replicate) * mesh_.size(Axis::shard); }
    int data_rank() const { return rank() / (mesh_.size(Axis::context) * mesh_.size(Axis::tensor)); }
    ContextSlice part() const {
        return {.size = mesh_.size(Axis::context),
                .index = mesh_.coordinates(rank())[static_cast<size_t>(Axis::context)]};
    }

    TensorSlice tensor() const {
        return {.size = mesh_.size(Axis::tensor),
                .index = mesh_.coordinates(rank())[static_cast<size_t>(Axis::tensor)],
                .sequence = sharing_.sequence && mesh_.size(Axis::tensor) > 1};
    }

  private:
    World* world_;
    Mesh mesh_;
    Sharing sharing_;
};

}  // namespace speedrun
