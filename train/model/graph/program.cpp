#include "train/model/graph/program.h"

#include <algorithm>
#include <array>

#include "kernels/device/error.h"
#include "train/model/graph/gradient_locations.h"

namespace speedrun {

namespace {

class Derivation {
  public:
    Derivation(const NodeGraph& graph, const Fusions& fusions, const Retained& retained, DType compute_dtype)
        : graph_(graph),
          fusions_(fusions),
          retention_(retention_of(graph, retained)),
          storages_(graph, compute_dtype),
          gradients_(graph, storages_),
          shared_(graph),
          in_forward_(graph.values().size(), -1),
          in_backward_(graph.values().size(), -1),
          order_of_(graph.values().size(), -1) {}

    Program derive(bool with_backward) {
        const std::vector<std::vector<const Node*>> by_unit = nodes_by_unit();
        const Node& loss = *graph_.nodes().back();
        for (int unit = 0; unit < graph_.num_units(); ++unit) {
            std::vector<const Node*> nodes = by_unit[static_cast<size_t>(unit)];
            std::erase(nodes, &loss);
            program_.forward.push_back({.kind = Instruction::Kind::enter, .unit = unit});
            append_forward(nodes, program_.forward, false);
        }
        program_.loss = {.kind = Instruction::Kind::forward, .unit = graph_.num_units() - 1, .number = now_};
        program_.loss.calls = {forward_call(loss, false)};
        ++now_;
        if (with_backward) derive_backward(by_unit);
        program_.storages = storages_.take();
        return std::move(program_);
    }

  private:
    using Sum = GradientLocations::Sum;

    void derive_backward(const std::vector<std::vector<const Node*>>& by_unit) {
        for (int unit = graph_.num_units(); unit-- > 0;) {
            program_.backward.push_back({.kind = Instruction::Kind::enter, .unit = unit});
            append_forward(retention_.repeats[static_cast<size_t>(unit)], program_.backward, true);
            append_backward(by_unit[static_cast<size_t>(unit)]);
        }
        account_for_parameters();
    }

    // A unit's first node runs at the end of the previous unit if one operation covers it and that unit's last node. It
    // must have no parameters, because the unit's parameters may not be gathered yet.
    std::vector<std::vector<const Node*>> nodes_by_unit() const {
        std::vector<std::vector<const Node*>> by_unit(static_cast<size_t>(graph_.num_units()));
        for (const auto& node : graph_.nodes())
            by_unit[static_cast<size_t>(graph_.unit_of(*node))].push_back(node.get());
        for (size_t unit = 1; unit < by_unit.size(); ++unit) {
            std::vector<const Node*>&before = by_unit[unit - 1], &here = by_unit[unit];
            if (before.empty() || here.empty() || !here.front()->uses().empty()) continue;
            const std::array<const Node*, 2> pair = {before.back(), here.front()};
            const bool fused = std::any_of(fusions_.begin(), fusions_.end(), [&](const auto& fusion) {
                return fusion->has_forward() && fusion->matches(graph_, pair) == pair.size();
            });
            if (!fused) continue;
            before.push_back(here.front());
            here.erase(here.begin());
        }
        return by_unit;
    }

    // Returns the place of a value in forward or backward.
    Location location_of(ValueId value, bool backward) {
        const ValueId root = graph_[value].root;
        int& forward_storage = in_forward_[static_cast<size_t>(root)];
        int& storage = backward && retention_.repeated[static_cast<size_t>(root)]
                           ? in_backward_[static_cast<size_t>(root)]
                           : forward_storage;
        if (storage < 0) storage = storages_.add(root, graph_[root].name);
        return storages_.use({.storage = storage, .like = value}, now_);
    }

    NodeCall forward_call(const Node& node, bool repeats) {
        NodeCall call;
        call.node = &node;
        for (const Node::Read& read : node.reads()) call.reads.push_back(location_of(read.value, repeats));
        for (const Node::Write& write : node.writes())
            call.writes.push_back(location_of(write.value, repeats));
        for (const Node::Scratch& scratch : node.scratch())
            call.scratch.push_back(scratch.forward ? storages_.scratch(scratch, node.kind(), now_)
                                                   : Location{});
        for (const Node::Use& use : node.uses()) call.uses.push_back({.parameter = use.parameter});
        call.orders.resize(call.reads.size());
        return call;
    }

    // Fused nodes share a step, because their operation reads and writes all values together.
    void append_forward(std::span<const Node* const> nodes, std::vector<Instruction>& instructions,
                        bool repeats) {
        while (!nodes.empty()) {
            Instruction instruction{.kind = Instruction::Kind::forward, .number = now_, .repeats = repeats};
            size_t count = 1;
            for (const auto& fusion : fusions_) {
                if (!fusion->has_forward()) continue;
                const size_t matched = fusion->matches(graph_, nodes);
                if (matched <= count) continue;
                count = matched;
                instruction.fusion = fusion.get();
            }
            for (const Node* node : nodes.first(count))
                instruction.calls.push_back(forward_call(*node, repeats));
            nodes = nodes.subspan(count);
            ++now_;
            instructions.push_back(std::move(instruction));
        }
    }

    // Returns the sorted order of these ids. Adds the sort before its first reader.
    Location order_of(const Node::Read& read) {
        int& storage = order_of_[static_cast<size_t>(read.value)];
        const int64_t count = graph_[read.value].numel();
        Location order{.storage = storage, .rows = 2, .cols = count, .element = Element::ids};
        if (storage < 0) {
            order.storage = storage = storages_.add_ids(2 * count, "order of " + graph_[read.value].name);
            program_.backward.push_back({.kind = Instruction::Kind::sort,
                                         .number = now_,
                                         .target = storages_.use(order, now_),
                                         .term = location_of(read.value, true),
                                         .limit = read.sorted_below,
                                         .others = read.of_others});
        }
        return storages_.use(order, now_);
    }

    // Appends backward of a unit's nodes, in reverse.
    void append_backward(std::span<const Node* const> nodes) {
        while (!nodes.empty()) {
            const size_t last = nodes.size() - 1;
            const Fusion* const fusion = last > 0 ? backward_fusion(nodes.subspan(last - 1)) : nullptr;
            std::vector<const Node*> done = {nodes[last]};
            std::vector<Sum> sums;
            if (gradients_.reaches(*nodes[last])) {
                Instruction instruction{.kind = Instruction::Kind::backward, .number = now_, .calls = {}};
                instruction.calls.push_back(backward_call(*nodes[last], sums));
                const bool fused = fusion && !is_summed(*nodes[last - 1], instruction.calls.front(), sums) &&
                                   gradients_.reaches(*nodes[last - 1]);
                if (fused) {
                    std::vector<Sum> of_earlier;
                    instruction.calls.insert(instruction.calls.begin(),
                                             backward_call(*nodes[last - 1], of_earlier));
                    sums.insert(sums.end(), of_earlier.begin(), of_earlier.end());
                    instruction.fusion = fusion;
                    nodes = nodes.first(last);
                    done.push_back(nodes.back());
                }
                program_.backward.push_back(std::move(instruction));
            }
            nodes = nodes.first(nodes.size() - 1);
            append_sums(sums);
            for (const Node* node : done) append_shared(shared_.after(*node));
        }
    }

    // True if a gradient between two nodes is a sum, also one that the later node computes: this prevents their fusion. call, sums: of
    // the later node.
    static bool is_summed(const Node& node, const NodeCall& call, const std::vector<Sum>& sums) {
        const auto is_between = [&](ValueId value) {
            return std::any_of(node.writes().begin(), node.writes().end(),
                               [&](const Node::Write& write) { return write.value == value; });
        };
        for (size_t i = 0; i < call.read_gradients.size(); ++i)
            if (call.read_gradients[i].adds && is_between(call.node->reads()[i].value)) return true;
        return std::any_of(sums.begin(), sums.end(),
                           [&](const Sum& sum) { return is_between(sum.target.like); });
    }

    void append_sums(const std::vector<Sum>& sums) {
        for (const auto& [target, term, other] : sums)
            program_.backward.push_back({.kind = Instruction::Kind::add,
                                         .number = now_,
                                         .target = target,
                                         .term = term,
                                         .other = other});
        ++now_;
    }

    // Appends the gradients of terms that several nodes share.
    void append_shared(std::span<const SharingNode> group) {
        std::vector<SharingNode> members;
        for (const SharingNode& member : group)
            if (gradients_.reaches(*member.node)) members.push_back(member);
        if (members.empty()) return;
        Instruction instruction{.kind = Instruction::Kind::shared, .number = now_};
        for (const auto& [node, terms] : members) {
            NodeCall& call = instruction.calls.emplace_back();
            call.node = node;
            call.reads.resize(node->reads().size());
            for (const Node::SharedTerm& term : terms)
                for (const size_t read : {term.value, term.coefficient})
                    call.reads[read] = location_of(node->reads()[read].value, true);
        }
        const std::vector<Sum> sums = gradients_.pass_shared(members, now_, instruction.calls);
        program_.backward.push_back(std::move(instruction));
        append_sums(sums);
    }

    const Fusion* backward_fusion(std::span<const Node* const> pair) const {
        for (const auto& fusion : fusions_)
            if (fusion->has_backward() && fusion->matches(graph_, pair) == pair.size()) return fusion.get();
        return nullptr;
    }

    NodeCall backward_call(const Node& node, std::vector<Sum>& sums) {
        NodeCall call;
        call.node = &node;
        for (const Node::Read& read : node.reads()) {
            call.orders.push_back(read.sorted_below > 0 ? order_of(read) : Location{});
            call.reads.push_back(read.in_backward ? location_of(read.value, true) : Location{});
        }
        const bool all_written = node.forward_in_backward();
        for (const Node::Write& write : node.writes())
            call.writes.push_back(write.in_backward || all_written ? location_of(write.value, true)
                                                                   : Location{});
        for (const Node::Scratch& scratch : node.scratch())
            call.scratch.push_back(scratch.backward ? storages_.scratch(scratch, node.kind(), now_)
                                                    : Location{});
        for (const Node::Use& use : node.uses()) call.uses.push_back({.parameter = use.parameter});
        sums = gradients_.pass(node, now_, call, shared_.of(node));
        return call;
    }

    // A gradient is ready with the last contribution. The parameter is released with the last read, if that is later.
    void account_for_parameters() {
        struct Last {
            NodeCall::Use* contribution = nullptr;
            Instruction* contributes = nullptr;
            Instruction* reads = nullptr;
        };
        std::vector<std::pair<ParameterId, Last>> all;
        const auto last_of = [&](ParameterId p) -> Last& {
            for (auto& [parameter, last] : all)
                if (parameter == p) return last;
            return all.emplace_back(p, Last{}).second;
        };
        for (Instruction& instruction : program_.backward) {
            for (NodeCall& call : instruction.calls) {
                for (size_t i = 0; i < call.uses.size(); ++i) {
                    Last& last = last_of(call.uses[i].parameter);
                    if (instruction.kind == Instruction::Kind::forward || call.node->uses()[i].in_backward)
                        last.reads = &instruction;
                    if (instruction.kind != Instruction::Kind::backward) continue;
                    last.contribution = &call.uses[i];
                    last.contributes = &instruction;
                }
            }
        }
        for (auto& [parameter, last] : all) {
            if (!last.contribution) continue;  // reported by PassTracker::end_backward
            last.contribution->completes = true;
            if (last.reads < last.contributes) continue;
            last.contribution->read_later = true;
            last.reads->freed.push_back(parameter);
        }
    }

    const NodeGraph& graph_;
    const Fusions& fusions_;
    const Retention retention_;
    Storages storages_;
    GradientLocations gradients_;
    const SharedTerms shared_;
    std::vector<int> in_forward_, in_backward_;  // storage by root; in_backward_ is for recomputed values
    std::vector<int> order_of_;                  // index: value
    int now_ = 0;
    Program program_;
};

}  // namespace

BufferAssignment share_memory(const Program& program) {
    constexpr int64_t kAlignment = 256;  // bytes; the minimum alignment of device allocations
    std::vector<BufferRequest> requests;
    for (const Storage& storage : program.storages)
        requests.push_back(
            storage.held != kNoValue
                ? BufferRequest{}
                : BufferRequest{.bytes = storage.bytes, .first = storage.first, .last = storage.last});
    return first_fit(requests, kAlignment);
}

Program derive_program(const NodeGraph& graph, const Fusions& fusions, const Retained& retained,
                       DType compute_dtype, bool with_backward) {
    return Derivation(graph, fusions, retained, compute_dtype).derive(with_backward);
}

}  // namespace speedrun
