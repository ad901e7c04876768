// Mesh: the ranks of a run as a grid replicate x shard x context x tensor, and the groups of ranks along its axes. In rank
// order tensor varies fastest, then context, shard, replicate, so that ranks with the most traffic are neighbours:
//     rank = ((r * S + s) * C + c) * T + t.
// A plain value, independent of MPI, streams and devices.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

enum class Axis : uint8_t { replicate, shard, context, tensor };
constexpr int kNumAxes = 4;
constexpr std::array<Axis, kNumAxes> kAxes{Axis::replicate, Axis::shard, Axis::context, Axis::tensor};
const char* name_of(Axis axis);

// A subset of the axes.
class AxisSet {
  public:
    constexpr AxisSet() = default;
    constexpr AxisSet(std::initializer_list<Axis> axes) {
        for (const Axis axis : axes) add(axis);
    }
    constexpr void add(Axis axis) { bits_ = static_cast<uint8_t>(bits_ | 1u << static_cast<int>(axis)); }
    constexpr bool contains(Axis axis) const { return (bits_ >> static_cast<int>(axis)) & 1u; }
    constexpr bool empty() const { return bits_ == 0; }
    constexpr bool operator==(const AxisSet&) const = default;
    std::string describe() const;  // "shard x context"; "none"

  private:
    uint8_t bits_ = 0;
};

// The ranks connected by a communicator, in order, and this rank's index.
struct Group {
    std::vector<int> ranks;  // global ranks, ascending
    int index = 0;           // ranks[index] is this rank

    int size() const { return static_cast<int>(ranks.size()); }
    std::string describe() const;  // "0 8 16 24"
};

using MeshCoordinates = std::array<int, kNumAxes>;  // index: Axis

class Mesh {
  public:
    Mesh() = default;  // one rank
    // Sizes by Axis; throws a usage error unless each is at least 1.
    explicit Mesh(std::array<int, kNumAxes> sizes);

    int world_size() const;
    int size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
    int size(AxisSet axes) const;
    AxisSet larger_than_one(AxisSet axes) const;
    MeshCoordinates coordinates(int rank) const;
    int rank(const MeshCoordinates& coordinates) const;
    // Returns all ranks that differ from `rank` on these axes only. Without axes: the rank itself.
    Group group(int rank, AxisSet axes) const;
    std::string describe() const;  // "replicate 4 x shard 8 x context 1 x tensor 1"

  private:
    std::array<int, kNumAxes> sizes_{1, 1, 1, 1};
};

// Returns the mesh of section `parallel` for this number of ranks. shard "auto" is the quotient of the ranks and the other
// axes. Usage errors: a product that differs from the number of ranks, a shard that is neither "auto" nor a number.
Mesh resolve_mesh(const ParallelConfig& parallel, int world_size);

}  // namespace speedrun
