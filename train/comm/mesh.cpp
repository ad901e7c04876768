#include "train/comm/mesh.h"

#include <charconv>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

int64_t parse_shard(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1)
        throw_usage("parallel.shard is '{}': want \"auto\" or a number of ranks, at least 1", text);
    return value;
}

}  // namespace

const char* name_of(Axis axis) {
    constexpr std::array<const char*, kNumAxes> kNames{"replicate", "shard", "context", "tensor"};
    return kNames[static_cast<size_t>(axis)];
}

std::string AxisSet::describe() const {
    std::string text;
    for (const Axis axis : kAxes) {
        if (!contains(axis)) continue;
        if (!text.empty()) text += " x ";
        text += name_of(axis);
    }
    return text.empty() ? "none" : text;
}

std::string Group::describe() const {
    std::string text;
    for (const int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : " ", rank);
    return text;
}

Mesh::Mesh(std::array<int, kNumAxes> sizes) : sizes_(sizes) {
    for (const Axis axis : kAxes) {
        if (size(axis) < 1)
            throw_usage("mesh: {} is {}, but an axis has at least 1 rank", name_of(axis), size(axis));
    }
}

int Mesh::world_size() const {
    return size({Axis::replicate, Axis::shard, Axis::context, Axis::tensor});
}

AxisSet Mesh::larger_than_one(AxisSet axes) const {
    AxisSet larger;
    for (const Axis axis : kAxes)
        if (axes.contains(axis) && size(axis) > 1) larger.add(axis);
    return larger;
}

int Mesh::size(AxisSet axes) const {
    int product = 1;
    for (const Axis axis : kAxes) {
        if (axes.contains(axis)) product *= size(axis);
    }
    return product;
}

MeshCoordinates Mesh::coordinates(int rank) const {
    if (rank < 0 || rank >= world_size())
        throw_internal("mesh: rank {} is not one of {} ranks", rank, world_size());
    MeshCoordinates coordinates{};
    for (int axis = kNumAxes - 1; axis >= 0; --axis) {
        coordinates[static_cast<size_t>(axis)] = rank % sizes_[static_cast<size_t>(axis)];
        rank /= sizes_[static_cast<size_t>(axis)];
    }
    return coordinates;
}

int Mesh::rank(const MeshCoordinates& coordinates) const {
    int rank = 0;
    for (const Axis axis : kAxes) {
        const int at = coordinates[static_cast<size_t>(axis)];
        if (at < 0 || at >= size(axis))
            throw_internal("mesh: coordinate {} on {}, which has {} ranks", at, name_of(axis), size(axis));
        rank = rank * size(axis) + at;
    }
    return rank;
}

Group Mesh::group(int rank, AxisSet axes) const {
    const MeshCoordinates own = coordinates(rank);
    Group group;
    for (int other = 0; other < world_size(); ++other) {
        const MeshCoordinates at = coordinates(other);
        bool member = true;
        for (const Axis axis : kAxes) {
            const auto i = static_cast<size_t>(axis);
            member = member && (axes.contains(axis) || at[i] == own[i]);
        }
        if (!member) continue;
        if (other == rank) group.index = group.size();
        group.ranks.push_back(other);
    }
    return group;
}

std::string Mesh::describe() const {
    return fmt::format("replicate {} x shard {} x context {} x tensor {}", sizes_[0], sizes_[1], sizes_[2],
                       sizes_[3]);
}

Mesh resolve_mesh(const ParallelConfig& parallel, int world_size) {
    const int64_t others = parallel.replicate * parallel.context * parallel.tensor;
    if (others < 1)
        throw_usage("parallel.replicate is {}, but an axis has at least 1 rank", parallel.replicate);
    if (parallel.shard == "auto" && world_size % others != 0) {
        throw_usage(
            "parallel: {} ranks cannot be cut into {} groups of equal size (replicate {} x context {} x tensor {}); "
            "start a multiple of {} ranks",
            world_size, others, parallel.replicate, parallel.context, parallel.tensor, others);
    }
    const int64_t shard = parallel.shard == "auto" ? world_size / others : parse_shard(parallel.shard);
    // Compared by division: the product of two large factors could overflow.
    if (world_size % others != 0 || world_size / others != shard) {
        throw_usage(
            "parallel: replicate {} x shard {} x context {} x tensor {} is not the number of ranks, {}; set "
            "parallel.shard to \"auto\" or start another number of ranks",
            parallel.replicate, shard, parallel.context, parallel.tensor, world_size);
    }
    return Mesh({static_cast<int>(parallel.replicate), static_cast<int>(shard),
                 static_cast<int>(parallel.context), static_cast<int>(parallel.tensor)});
}

}  // namespace speedrun
