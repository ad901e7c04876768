#include "train/model/nodes/weighted_sum.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "train/model/graph/graph.h"

namespace speedrun {

namespace {

Tensor element_of(const Tensor& numbers, int64_t element) {
    return numbers.reshaped({numbers.numel(), 1}).row_slice(element, 1).reshaped({1});
}

// Reshapes a coefficient that is equal for all tokens to one dimension.
Tensor as_coefficient(const Tensor& gate) {
    return gate.present() && gate.numel() == 1 ? gate.reshaped({1}) : gate;
}

}  // namespace

WeightedSum::WeightedSum(const Ports& ports, int64_t sequence_length)
    : Node(Cost::pointwise), y(writes({.value = ports.y})), sequence_length_(sequence_length) {
    if (ports.terms.empty() || ports.terms.size() > kMaxTerms)
        throw_internal("a weighted sum of {} terms, 1 to {} are possible", ports.terms.size(), kMaxTerms);
    const auto is_weighted = [](const Term& term) {
        return term.parameter != kNoParameter || term.gate != kNoValue;
    };
    const auto is_plain = [&](const Term& term) {
        return !is_weighted(term) && term.factor == 1 && !term.shifted && !term.is_view;
    };
    // Terms with a passed or shifted gradient need the whole gradient of y until the end.
    const bool lasts = std::any_of(ports.terms.begin(), ports.terms.end(),
                                   [&](const Term& term) { return term.shifted || is_plain(term); });
    for (const Term& term : ports.terms) {
        const bool passed = is_plain(term);
        if (term.parameter != kNoParameter && term.gate != kNoValue)
            throw_internal("a term of a weighted sum has a parameter and a gate");
        const bool in_place = !lasts && terms_.empty();
        terms_.push_back(
            {.value = reads({.value = term.value,
                             .gradient = passed ? GradientRule::passed : GradientRule::added,
                             .in_backward = is_weighted(term),
                             .in_place = in_place}),
             .gate = reads({.value = term.gate, .gradient = GradientRule::added, .in_backward = true}),
             .parameter = use_once(term.parameter),
             .element = term.element,
             .factor = term.factor,
             .shifted = term.shifted,
             .passed = passed});
    }
}

Node::Par WeightedSum::use_once(ParameterId parameter) {
    for (size_t i = 0; i < uses().size(); ++i)
        if (uses()[i].parameter == parameter) return {static_cast<int>(i)};
    return Node::uses(parameter, true);
}

bool WeightedSum::is_mix() const {
    return terms_.size() == 2 && uses().size() == 1 && terms_[0].element == 0 && terms_[1].element == 1 &&
           std::all_of(terms_.begin(), terms_.end(), [](const Port& term) {
               return term.parameter.index == 0 && term.factor == 1 && !term.shifted;
           });
}

bool WeightedSum::is_by_rows(const NodeGraph& graph) const {
    return std::none_of(terms_.begin(), terms_.end(), [&](const Port& term) {
        const bool by_heads = term.gate.index >= 0 && graph.width_of(value_of(term.gate)) > 1;
        return term.passed || term.shifted || by_heads;
    });
}

std::string WeightedSum::describe(const NodeGraph& graph) const {
    std::string text = is_mix() ? "mix of" : "sum of";
    for (const Port& term : terms_) {
        const std::string comma = &term == &terms_.front() ? "" : is_mix() ? " and" : " +";
        text += comma + " ";
        if (term.factor != 1) text += fmt::format("{:g} x ", term.factor);
        if (!is_mix() && term.parameter.index >= 0) text += fmt::format("c{} x ", term.element);
        if (term.gate.index >= 0) text += graph.local_name(value_of(term.gate)) + " x ";
        text += graph.local_name(value_of(term.value));
        if (term.shifted) text += " of the token before";
    }
    return text;
}

WeightedTerms WeightedSum::terms_of(const Call& call) const {
    WeightedTerms terms;
    for (size_t j = 0; j < terms_.size(); ++j) {
        const Port& port = terms_[j];
        Tensor coefficient = as_coefficient(call(port.gate));
        if (port.parameter.index >= 0) coefficient = element_of(call(port.parameter), port.element);
        terms[j] = {.source = call(port.value),
                    .coefficient = coefficient,
                    .factor = port.factor,
                    .shifted = port.shifted};
    }
    return terms;
}

void WeightedSum::forward(const Call& call) const {
    call.ops.weighted_sum_forward(
        {.y = call(y), .terms = terms_of(call), .sequence_length = sequence_length_}, call.stream);
}

bool WeightedSum::take_gradients(const Call& call, std::span<const ParameterGradient> parameters,
                                 TermGradients& gradients, WeightedTerms& requested) const {
    // A passed gradient needs no operation. The remaining terms are compacted.
    const WeightedTerms terms = terms_of(call);
    size_t count = 0;
    for (size_t j = 0; j < terms_.size(); ++j) {
        const Port& port = terms_[j];
        if (port.passed) continue;
        const ValueGradient value = call.gradient(port.value), gate = call.gradient(port.gate);
        if (!value.tensor.present()) continue;  // computed by backward_of_shared()
        TermGradient& gradient = gradients[count];
        gradient = {.dsource = value.tensor,
                    .dcoefficient = as_coefficient(gate.tensor),
                    .accumulate_source = value.adds,
                    .accumulate_coefficient = gate.adds};
        if (port.parameter.index >= 0) {
            const ParameterGradient& parameter = parameters[static_cast<size_t>(port.parameter.index)];
            gradient.dcoefficient = element_of(parameter.tensor, port.element);
            gradient.accumulate_coefficient = parameter.adds;
        }
        requested[count] = terms[j];
        const bool weighted = port.gate.index >= 0 || port.parameter.index >= 0;
        if (!weighted) requested[count].source = value.tensor;  // any of its shape: it is not read
        ++count;
    }
    return count > 0;
}

std::vector<Node::SharedTerm> WeightedSum::shared_terms(const NodeGraph& graph) const {
    std::vector<SharedTerm> shared;
    const Value& written = graph[value_of(y)];
    if (written.is_view) return shared;
    for (const Port& term : terms_) {
        if (term.gate.index < 0 || term.shifted || term.passed) continue;
        const auto value = static_cast<size_t>(term.value.index), gate = static_cast<size_t>(term.gate.index);
        const Value& coefficient = graph[reads()[gate].value];
        const bool by_rows = coefficient.extents.size() == 2 && coefficient.extents[1].size == 1 &&
                             coefficient.extents[0].size == written.extents[0].size &&
                             written.extents[0].size > 1;
        const Read& read = reads()[value];
        if (by_rows && read.gradient == GradientRule::added && !read.in_place && !graph[read.value].is_view)
            shared.push_back({value, gate});
    }
    return shared;
}

void WeightedSum::backward_of_shared(std::span<const Call> calls) const {
    op::SharedSourcesBackward together{.sources = {}, .sums = {}};
    std::vector<ValueId> values;  // index: source
    for (size_t l = 0; l < calls.size(); ++l) {
        const Call& call = calls[l];
        const auto& sum = static_cast<const WeightedSum&>(call.node());
        together.sums[l].dy = call.gradient(sum.y);
        for (const Port& term : sum.terms_) {
            if (!call(term.value).present()) continue;  // no shared term
            const auto found = std::find(values.begin(), values.end(), sum.value_of(term.value));
            const auto m = static_cast<size_t>(found - values.begin());
            if (found == values.end()) {
                values.push_back(sum.value_of(term.value));
                const ValueGradient gradient = call.gradient(term.value);
                together.sources[m] = {call(term.value), gradient.tensor, gradient.adds};
            }
            const ValueGradient gate = call.gradient(term.gate);
            together.sums[l].terms[m] = {call(term.gate), gate.tensor, term.factor, gate.adds};
        }
    }
    calls.front().ops.shared_sources_backward(together, calls.front().stream);
}

void WeightedSum::backward(const Call& call) const {
    contributions(call, [&](const TermGradients& gradients, const WeightedTerms& terms) {
        call.ops.weighted_sum_backward({.gradients = gradients,
                                        .dy = call.gradient(y),
                                        .terms = terms,
                                        .sequence_length = sequence_length_},
                                       call.stream);
    });
}

}  // namespace speedrun
