#include "train/model/graph/dot_text.h"

#include <algorithm>
#include <set>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// For a label in Graphviz's HTML.
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
            for (const Node::Write& write : node->writes())
                if (write.in_backward) in_backward_[static_cast<size_t>(write.value)] = true;
        }
        find_frames();
    }

    std::string text() {
        std::string unit, edges;
        std::set<ValueId> drawn;
        for (const Node* node : nodes_) {
            for (const Node::Read& read : node->reads()) {
                draw_value(read.value, unit, edges, drawn);
                // Dotted: no gradient goes back.
                edges += fmt::format("  v{} -> n{}{};\n", read.value, node->id(),
                                     read.gradient == Gives::nothing ? " [style=dotted]" : "");
            }
            for (const Node::Write& write : node->writes()) {
                // Its columns are those of what it is written over: that is drawn with what reads it.
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
            "  label=<{}<br/>{}>;\n"
            "  node [shape=plain, fontname=\"Helvetica\", fontsize=12];\n"
            "  edge [color=\"#555555\", arrowsize=0.7];\n"
            "  subgraph cluster_unit {{\n"
            "    label=\"\"; style=rounded; color=\"#888888\";\n{}  }}\n{}{}}}\n",
            escaped(picture_.title),
            small("bold: backward reads it; dotted: no gradient goes back; yellow: fused in forward"), unit,
            outside_, edges);
    }

  private:
    // Frames of what forward runs as one, with the values that only they pass on.
    void find_frames() {
        for (const Step& step : picture_.program.forward) {
            if (step.calls.size() < 2 || graph_.unit_of(*step.calls.front().node) != picture_.unit) continue;
            const auto frame = static_cast<int>(frames_.size());
            frames_.emplace_back();
            std::set<ValueId> written;
            for (const NodeCall& call : step.calls) {
                frame_of_[static_cast<size_t>(call.node->id())] = frame;
                for (const Node::Read& read : call.node->reads())
                    if (written.count(read.value)) inside_[static_cast<size_t>(read.value)] = frame;
                for (const Node::Write& write : call.node->writes()) written.insert(write.value);
            }
        }
    }

    static std::string dimensions(const Value& value) {
        std::string text;
        for (const Extent& extent : value.extents)
            text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(extent.dimension), extent.size);
        if (value.element == Element::f32) text += ", f32";
        if (value.element == Element::ids) text += ", ids";
        return text;
    }

    void place(ValueId id, std::string& unit) {
        const Value& value = graph_[id];
        const int frame = inside_[static_cast<size_t>(id)];
        const std::string name = escaped(graph_.local_name(id));
        std::string more = small(dimensions(value));
        if (value.is_view) {
            const Value& root = graph_[value.root];
            const int64_t last = value.first_column + value.extents[1].size - 1;
            more += "<br/>" + small(fmt::format("columns {}-{} of {}", value.first_column, last,
                                                graph_.local_name(value.root)));
            if (root.unit != picture_.unit) more += small(" of " + graph_.unit_name(root.unit));
        }
        const bool bold = in_backward_[static_cast<size_t>(id)];
        (frame < 0 ? unit : frames_[static_cast<size_t>(frame)]) += fmt::format(
            "    v{} [label=<{}{}{}<br/>{}>];\n", id, bold ? "<b>" : "", name, bold ? "</b>" : "", more);
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
            "    n{} [label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"0\" cellpadding=\"6\">"
            "<tr>{}</tr></table>>];\n",
            node.id(), cells);
    }

    // A value that a node of the unit reads and none before it wrote: it enters, or is columns of another.
    void draw_value(ValueId id, std::string& unit, std::string& edges, std::set<ValueId>& drawn) {
        if (!drawn.insert(id).second) return;
        const Value& value = graph_[id];
        if (value.unit == picture_.unit && value.holder == Holder::program) {
            place(id, unit);
            if (!value.is_view) return;
            draw_value(value.root, unit, edges, drawn);
            edges += fmt::format("  v{} -> v{} [arrowhead=none];\n", value.root, id);
            return;
        }
        const std::string from = value.holder == Holder::batch      ? "the batch"
                                 : value.holder == Holder::constant ? "a constant"
                                                                    : graph_.unit_name(value.unit);
        const bool bold = in_backward_[static_cast<size_t>(id)];
        outside_ += fmt::format(
            "  v{} [shape=box, style=\"rounded,filled\", color=\"#bbbbbb\", fillcolor=\"#f2f2f2\", "
            "label=<{}{}{}<br/>{}>];\n",
            id, bold ? "<b>" : "", escaped(graph_.local_name(id)), bold ? "</b>" : "",
            small((value.holder == Holder::program || value.holder == Holder::model ? "from " : "") + from +
                  ": " + dimensions(value)));
    }

    // What a node writes and other units read; by value, one arrow for all of them.
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
            outside_ += fmt::format(
                "  x{} [shape=box, style=\"rounded,filled\", color=\"#bbbbbb\", fillcolor=\"#f2f2f2\", "
                "label=<{}>];\n",
                write.value, small(to));
            edges += fmt::format("  v{} -> x{};\n", write.value, write.value);
        }
    }

    const UnitPicture& picture_;
    const NodeGraph& graph_;
    std::vector<const Node*> nodes_;
    std::vector<bool> in_backward_;  // by value
    std::vector<int> frame_of_;      // by node; −1: none
    std::vector<int> inside_;        // by value: the frame that passes it on; −1: none
    std::vector<std::string> frames_;
    std::string outside_;
};

}  // namespace

std::string dot_text(const UnitPicture& picture) {
    if (picture.unit < 0 || picture.unit >= picture.graph.num_units())
        throw_internal("unit {} of {}", picture.unit, picture.graph.num_units());
    return Drawing(picture).text();
}

int most_telling_unit(const NodeGraph& graph) {
    std::vector<int> nodes(static_cast<size_t>(graph.num_units()));
    for (const auto& node : graph.nodes()) ++nodes[static_cast<size_t>(graph.unit_of(*node))];
    const int most = *std::max_element(nodes.begin(), nodes.end());
    std::vector<int> units;
    for (int unit = 0; unit < graph.num_units(); ++unit)
        if (nodes[static_cast<size_t>(unit)] == most) units.push_back(unit);
    return units[(units.size() - 1) / 2];
}

}  // namespace speedrun
