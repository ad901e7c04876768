// Parameters with every kind of tensor-axis cut, and a replicated one of each kind.
#pragma once

#include "train/parameters/parameter_table.h"

namespace speedrun::testing {

// Slices owned by one rank. The number of parts divides 6.
inline ParameterTable cut_table(const TensorSlice& part) {
    using enum Dimension;
    using Kind = InitRule::Kind;
    ParameterTable table(part.index);
    const auto cut = [&](Dimension dimension, int64_t size, int64_t stacked = 1) {
        Extent extent{.dimension = dimension, .size = size / part.size, .parts = part.size};
        if (stacked > 1) extent.stacks.assign(static_cast<size_t>(stacked), extent.size / stacked);
        return extent;
    };
    const Extent across{.dimension = width, .size = 5};
    const auto counted = [](int64_t count) {
        InitRule rule{.kind = Kind::elements};
        for (int64_t i = 1; i <= count; ++i) rule.elements.push_back(static_cast<float>(i));
        return rule;
    };
    table.declare("qkv.weight", {cut(head_width, 18, 3), across}, {Kind::normal, 0.5f});
    table.declare("qkv.bias", {cut(head_width, 18, 3)}, counted(18));
    table.declare("out.weight", {across, cut(head_width, 6)}, {Kind::uniform, 0.25f});
    table.declare("norm.gain", {across}, {Kind::constant, 1});
    table.declare("up.weight", {cut(hidden, 12), across}, {Kind::uniform, 0.5f});
    table.declare("down.weight", {across, cut(hidden, 12)}, {Kind::normal, 2});
    table.declare("mix", {{.dimension = numbers, .size = 3}}, counted(3));
    table.declare("position.weight", {{.dimension = positions, .size = 4}, across}, {Kind::normal, 1});
    // Replicated parameters sum their gradients over the tensor ranks where these process different tokens.
    for (const Parameter& p : table.all())
        if (part.sequence && p.cut.all()) table.set_summed(p.id, {tokens, own_tokens});
    table.set_num_units(1);
    return table;
}

}  // namespace speedrun::testing
