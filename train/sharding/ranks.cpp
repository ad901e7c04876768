#include "train/sharding/ranks.h"

#include "kernels/device/error.h"

namespace speedrun {

Ranks::Ranks(const Mesh& mesh, const Sharing& sharing, World* world)
    : world_(world), mesh_(mesh), sharing_(resolve_sharing(sharing)) {
    if (world && world->size() != mesh.world_size())
        throw_internal("a world of {} ranks for a mesh of {} ({})", world->size(), mesh.world_size(),
                       mesh.describe());
}

}  // namespace speedrun
