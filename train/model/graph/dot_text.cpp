#include "train/model/graph/dot_text.h"

#include <algorithm>
#include <set>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Escapes characters that are reserved in Graphviz's HTML labels.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

constexpr const char* kOutside =
    "shape=box, style=\"rounded,filled\", color=\"#bbbbbb\", fillcolor=\"#f2f2f2\"";

std::string small(const std::string& text) {
    return fmt::format("<font point-size=\"10\" color=\"#555555\">{}</font>", escaped(text));
}

class Drawing {
  public:
    explicit Drawing(const UnitPicture& picture)
        : picture_(picture),
          graph_(picture.graph),
          in_backward_(graph_.values().size()),
          frame_of_(graph_.nodes().size(), -1),
          inside_(graph_.values().size(), -1) {
        for (const auto& node : graph_.nodes()) {
            if (graph_.unit_of(*node) == picture.unit) nodes_.push_back(node.get());
            for (const Node::Read& read : node->reads())
                if (read.in_backward) in_backward_[static_cast<size_t>(read.value)] = true;
            for (const Node::Write& write : node->writes()) {
                written_.insert(write.value);
                if (write.in_backward) in_backward_[static_cast<size_t>(write.value)] = true;
            }
        }
        find_frames();
    }

    std::string text() {
        std::string unit, edges;
        std::set<ValueId> drawn;
        for (const Node* node : nodes_) {
            for (const Node::Read& read : node->reads()) {
                if (is_input(read.value)) continue;
                draw_value(read.value, unit, edges, drawn);
                // Dotted edges carry no gradient.
                edges += fmt::format("  v{} -> n{}{};\n", read.value, node->id(),
                                     read.gradient == GradientRule::none ? " [style=dotted]" : "");
            }
            draw_given(*node, edges);
            for (const Node::Write& write : node->writes()) {
                // A written view needs no edge from its root, which the node reads.
                if (drawn.insert(write.value).second) place(write.value, unit);
                edges += fmt::format("  n{} -> v{};\n", node->id(), write.value);
            }
            place(*node, unit);
            leave(*node, edges);
        }
        for (size_t frame = 0; frame < frames_.size(); ++frame)
            unit += fmt::format(
                "    subgraph cluster_fused{} {{\n"
                "      label=\"one operation\"; fontsize=10; style=\"rounded,filled\"; color=\"#c9a227\"; "
                "fillcolor=\"#fff8e1\";\n{}    }}\n",
                frame, frames_[frame]);
        return fmt::format(
            "digraph unit {{\n"
            "  rankdir=TB; fontname=\"Helvetica\"; fontsize=16; nodesep=0.35; ranksep=0.3; labelloc=t;\n"
            "  label=<<table border=\"0\"><tr><td>{}</td></tr><tr><td>{}</td></tr></table>>;\n"
            "  node [shape=plaintext, margin=\"0.05,0.03\", height=0, width=0, fontname=\"Helvetica\", "
            "fontsize=12];\n"
            "  edge [color=\"#555555\", arrowsize=0.7];\n"
            "  subgraph cluster_unit {{\n"
            "    label=\"\"; style=rounded; color=\"#888888\";\n{}  }}\n{}{}}}\n",
            escaped(picture_.title),
            small("bold: backward reads it; dotted: no gradient goes back; yellow: fused in forward"), unit,
            outside_, edges);
    }

  private:
    // Frames the nodes that forward fuses, with the values used only inside the fusion. A fusion with a norm of the
    // next unit has no frame, because only half of it is in the picture.
    void find_frames() {
        for (const Instruction& instruction : picture_.program.forward) {
            const bool drawn = std::all_of(
                instruction.calls.begin(), instruction.calls.end(),
                [&](const NodeCall& call) { return graph_.unit_of(*call.node) == picture_.unit; });
            if (instruction.calls.size() < 2 || !drawn) continue;
            const auto frame = static_cast<int>(frames_.size());
            frames_.emplace_back();
            std::set<ValueId> written;
            for (const NodeCall& call : instruction.calls) {
                frame_of_[static_cast<size_t>(call.node->id())] = frame;
                for (const Node::Read& read : call.node->reads())
                    if (written.count(read.value)) inside_[static_cast<size_t>(read.value)] = frame;
                for (const Node::Write& write : call.node->writes()) written.insert(write.value);
            }
        }
    }

    bool is_input(ValueId id) const {
        return graph_[id].holder == Holder::batch || graph_[id].holder == Holder::constant;
    }

    std::string name_of(ValueId id) const {
        const std::string name = escaped(graph_.local_name(id));
        return in_backward_[static_cast<size_t>(id)] ? "<b>" + name + "</b>" : name;
    }

    static std::string dimensions(const Value& value) {
        std::string text;
        for (const Extent& extent : value.extents)
            text += fmt::format("{}{} {}", text.empty() ? "" : " x ", speedrun::name_of(extent.dimension),
                                extent.size);
        if (value.element == Element::f32) text += ", f32";
        if (value.element == Element::ids) text += ", ids";
        return text;
    }

    void place(ValueId id, std::string& unit) {
        const Value& value = graph_[id];
        const int frame = inside_[static_cast<size_t>(id)];
        std::string more = small(dimensions(value));
        if (value.is_view)
            more += "<br/>" +
                    small(fmt::format("{}columns {}-{} of {}", written_.count(id) ? "over " : "",
                                      value.first_column, value.first_column + value.extents[1].size - 1,
                                      graph_.local_name(value.root)));
        (frame < 0 ? unit : frames_[static_cast<size_t>(frame)]) +=
            fmt::format("    v{} [label=<{}<br/>{}>];\n", id, name_of(id), more);
    }

    void place(const Node& node, std::string& unit) {
        std::string cells = fmt::format("<td bgcolor=\"#dce9f7\">{}</td>", escaped(node.describe(graph_)));
        std::string parameters;
        for (const Node::Use& use : node.uses()) {
            const Parameter& p = picture_.table[use.parameter];
            std::string shape;
            for (const int64_t size : p.shape) shape += fmt::format("{}{}", shape.empty() ? "" : " x ", size);
            parameters += fmt::format("{}{} {}", parameters.empty() ? "" : "<br align=\"left\"/>",
                                      escaped(graph_.local_name(p.name, picture_.unit)), small(shape));
        }
        if (!parameters.empty())
            cells += fmt::format("<td bgcolor=\"#e6f2e1\" align=\"left\">{}</td>", parameters);
        const int frame = frame_of_[static_cast<size_t>(node.id())];
        (frame < 0 ? unit : frames_[static_cast<size_t>(frame)]) += fmt::format(
            "    n{} [shape=plain, label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"0\" "
            "cellpadding=\"6\">"
            "<tr>{}</tr></table>>];\n",
            node.id(), cells);
    }

    // Draws a value that a node of the unit reads before any writes it: an input of the unit, or a view.
    void draw_value(ValueId id, std::string& unit, std::string& edges, std::set<ValueId>& drawn) {
        if (!drawn.insert(id).second) return;
        const Value& value = graph_[id];
        if (value.unit != picture_.unit) {
            outside_ += fmt::format("  v{} [{}, label=<{}<br/>{}>];\n", id, kOutside, name_of(id),
                                    small("from " + graph_.unit_name(value.unit) + ": " + dimensions(value)));
            return;
        }
        place(id, unit);
        if (!value.is_view) return;
        draw_value(value.root, unit, edges, drawn);
        edges += fmt::format("  v{} -> v{} [arrowhead=none];\n", value.root, id);
    }

    // Draws one box for all batch columns and constants that a node reads.
    void draw_given(const Node& node, std::string& edges) {
        std::string lines;
        for (const Node::Read& read : node.reads())
            if (is_input(read.value))
                lines += fmt::format("{}{} {}", lines.empty() ? "" : "<br/>", name_of(read.value),
                                     small(dimensions(graph_[read.value])));
        if (lines.empty()) return;
        outside_ += fmt::format("  g{} [{}, label=<{}>];\n", node.id(), kOutside, lines);
        edges += fmt::format("  g{} -> n{} [style=dotted];\n", node.id(), node.id());
    }

    // Draws edges to other units that read the node's values, one per value.
    void leave(const Node& node, std::string& edges) {
        for (const Node::Write& write : node.writes()) {
            std::string to;
            int units = 0, last = -1;
            for (const auto& reader : graph_.nodes()) {
                const int unit = graph_.unit_of(*reader);
                if (unit == picture_.unit || unit == last) continue;
                const bool reads_it =
                    std::any_of(reader->reads().begin(), reader->reads().end(), [&](const Node::Read& read) {
                        return read.value == write.value || graph_[read.value].root == write.value;
                    });
                if (!reads_it) continue;
                last = unit;
                if (++units <= 2) to += (to.empty() ? "to " : ", ") + graph_.unit_name(unit);
            }
            if (units > 2) to += fmt::format(" and {} more", units - 2);
            if (graph_[write.value].holder == Holder::model) to = "read after the pass";
            if (to.empty()) continue;
            outside_ += fmt::format("  x{} [{}, label=<{}>];\n", write.value, kOutside, small(to));
            edges += fmt::format("  v{} -> x{};\n", write.value, write.value);
        }
    }

    const UnitPicture& picture_;
    const NodeGraph& graph_;
    std::vector<const Node*> nodes_;
    std::vector<bool> in_backward_;  // index: value
    std::set<ValueId> written_;      // values written by a node, not as a view
    std::vector<int> frame_of_;      // index: node; −1: none
    std::vector<int> inside_;        // index: value; frame that contains it, −1: none
    std::vector<std::string> frames_;
    std::string outside_;
};

}  // namespace

std::string dot_text(const UnitPicture& picture) {
    if (picture.unit < 0 || picture.unit >= picture.graph.num_units())
        throw_internal("unit {} of {}", picture.unit, picture.graph.num_units());
    return Drawing(picture).text();
}

int default_unit(const NodeGraph& graph) {
    std::vector<int> nodes(static_cast<size_t>(graph.num_units()));
    for (const auto& node : graph.nodes()) ++nodes[static_cast<size_t>(graph.unit_of(*node))];
    const int most = *std::max_element(nodes.begin(), nodes.end());
    std::vector<int> units;
    for (int unit = 0; unit < graph.num_units(); ++unit)
        if (nodes[static_cast<size_t>(unit)] == most) units.push_back(unit);
    return units[(units.size() - 1) / 2];
}

}  // namespace speedrun
