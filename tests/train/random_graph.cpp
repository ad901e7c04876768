#include "tests/train/random_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "train/model/nodes/activation.h"
#include "train/model/nodes/embedding.h"
#include "train/model/nodes/gate.h"
#include "train/model/nodes/linear.h"
#include "train/model/nodes/weighted_sum.h"

namespace speedrun::testing {

using reference::Matrix;

namespace {

const Extent kTokenExtent{Dimension::tokens, RandomGraph::kTokens};
const Extent kWidthExtent{Dimension::width, RandomGraph::kWidth};
constexpr NormKind kNorm = NormKind::rmsnorm;
constexpr float kEpsilon = 0.125f;  // large enough that the default epsilon would change the result
constexpr Activation kActivation = Activation::gelu_tanh;

Matrix first_columns(const Matrix& x, int64_t count) {
    return reference::column_block(x, 0, count);
}

}  // namespace

ParameterId RandomGraph::declare(const std::string& name, const std::vector<Extent>& extents, double mean) {
    const ParameterId id = table.declare(name, extents, {});
    table.set_uses(id, {{.unit = 0, .in_backward = true}});
    std::normal_distribution<double> normal(mean, 0.3);
    Matrix values(extents.size() == 2 ? extents[0].size : 1, extents.back().size);
    for (double& x : values.values) x = static_cast<float>(normal(random_));
    parameters.push_back(values);
    return id;
}

ValueId RandomGraph::value(const char* name) {
    return graph.value(fmt::format("{} {}", name, values_.size()), Element::compute_dtype,
                       {kTokenExtent, kWidthExtent});
}

void RandomGraph::norm(Norm::Ports ports) {
    ports.statistics = {kNoValue, graph.value("rstd", Element::f32, {kTokenExtent})};
    graph.add(std::make_unique<Norm>(ports, kNorm, kEpsilon));
}

// Usually one of the last three values; sometimes any value, as for skips.
ValueId RandomGraph::any_value() {
    const size_t count = values_.size();
    const size_t reach = random_() % 3 == 0 ? count : std::min<size_t>(count, 3);
    return values_[count - 1 - random_() % reach];
}

void RandomGraph::embed() {
    const ValueId out = value("embedded");
    // A new table each time: swapping two lookups in one table would not change the result.
    const ParameterId from = operations_.empty()
                                 ? table_
                                 : declare(fmt::format("table {}", operations_.size()),
                                           {{Dimension::vocabulary, kVocabulary}, kWidthExtent}, 0);
    graph.add(std::make_unique<Embedding>(
        Embedding::Ports{.out = out, .tokens = tokens, .table = from, .table_rows = kVocabulary}));
    operations_.push_back({Kind::embedding, {}, {out}, {from}});
    values_.push_back(out);
    unread_.push_back(out);
}

ValueId RandomGraph::gate(Operation& operation, ValueId of, int64_t columns) {
    const size_t number = parameters.size();
    const ParameterId weight = declare(fmt::format("gate {}", number),
                                       {{Dimension::heads, columns}, {Dimension::numbers, kGateColumns}}, 0);
    operation.parameters.push_back(weight);
    const ValueId gates = graph.value(fmt::format("gates {}", number), Element::f32,
                                      {kTokenExtent, {Dimension::heads, columns}});
    graph.add(std::make_unique<Gate>(Gate::Ports{.y = gates, .x = of, .weight = weight}, kGateColumns));
    return gates;
}

void RandomGraph::append(Kind kind) {
    const Kind before = operations_.back().kind;
    const bool follows = (kind == Kind::norm && before == Kind::add) ||
                         (kind == Kind::linear && before == Kind::square && random_() % 2 == 0);
    // A linear is followed by an activation; relu² overwrites its input.
    const bool squares = kind == Kind::linear && random_() % 4 == 0;
    const ValueId product = kind == Kind::linear ? value("product") : kNoValue;
    const ValueId written =
        squares ? graph.view(product, fmt::format("square {}", values_.size()), 0, kWidth) : value("value");
    Operation operation{kind, {follows ? values_.back() : any_value()}, {written}, {}};
    const ValueId x = operation.reads[0], y = operation.writes[0];
    const auto number = operations_.size();
    const auto gain = [&] {
        operation.parameters.push_back(declare(fmt::format("gain {}", number), {kWidthExtent}, 1));
        return operation.parameters.back();
    };
    switch (kind) {
        case Kind::embedding:
            return embed();
        case Kind::linear: {
            const bool reuse = !weights_.empty() && random_() % 3 == 0;  // reuse a weight
            ParameterId weight = reuse ? weights_[random_() % weights_.size()] : kNoParameter;
            // Swapping equal values would not change the result.
            if (!reuse || !made_.insert({x, weight}).second) {
                weight = declare(fmt::format("weight {}", number), {kWidthExtent, kWidthExtent}, 0);
                weights_.push_back(weight);
                made_.insert({x, weight});
            }
            // As with values, equal gradients could be swapped: readers of one weight must not read the same
            // gradient.
            Linear::Ports ports{.y = product, .x = x, .weight = weight};
            if (random_() % 3 == 0) ports.addend = any_value();  // may equal x
            graph.add(std::make_unique<Linear>(ports));
            graph.add(std::make_unique<Activate>(Activate::Ports{y, product},
                                                 squares ? Activation::relu_squared : kActivation));
            operations_.push_back({Kind::linear, {x, ports.addend}, {product}, {weight}});
            std::erase(unread_, ports.addend);
            operation = {squares ? Kind::square : Kind::activation, {product}, {y}, {}};
            std::erase(unread_, x);
            break;
        }
        case Kind::activation:
            if (!made_.insert({x, kNoParameter}).second) return;
            graph.add(std::make_unique<Activate>(Activate::Ports{y, x}, kActivation));
            break;
        case Kind::square:
            break;  // part of a linear
        case Kind::norm:
            norm({.y = y, .statistics = {}, .x = x, .parameters = {gain()}});
            break;
        case Kind::sum_norm: {
            operation.reads.push_back(any_value());  // may equal x
            operation.writes.insert(operation.writes.begin(), value("mixed"));
            operation.parameters.push_back(
                declare(fmt::format("mix {}", number), {{Dimension::numbers, 2}}, 0.7));
            const ParameterId mix = operation.parameters.back();
            std::vector<WeightedSum::Term> terms = {
                {.value = x, .parameter = mix, .element = 0},
                {.value = operation.reads[1], .parameter = mix, .element = 1}};
            if (random_() % 2 == 0) std::swap(terms[0], terms[1]);  // no longer a mix
            graph.add(std::make_unique<WeightedSum>(
                WeightedSum::Ports{.y = operation.writes[0], .terms = terms}, kSequence));
            NormParameters learned;
            if (random_() % 2 == 0) {
                learned.gain = gain();
            } else {  // a norm after a unit boundary, shared by two units
                graph.begin_unit();
                operation.writes[1] = value("normed");
            }
            norm({.y = operation.writes[1],
                  .statistics = {},
                  .x = operation.writes[0],
                  .parameters = learned});
            break;
        }
        case Kind::weighted: {  // x + c·(z of the previous row) − gate(u)·w; any of the values may coincide
            const ValueId z = any_value(), w = any_value(), u = any_value();
            for (const ValueId read : {z, w, u}) operation.reads.push_back(read);
            const ParameterId c = declare(fmt::format("factor {}", number), {{Dimension::numbers, 1}}, 0.7);
            operation.parameters = {c};
            const ValueId gates = gate(operation, u, kHeads);
            graph.add(std::make_unique<WeightedSum>(
                WeightedSum::Ports{.y = y,
                                   .terms = {{.value = x},
                                             {.value = z, .parameter = c, .shifted = true},
                                             {.value = w, .gate = gates, .factor = -1}}},
                kSequence));
            break;
        }
        case Kind::injected:
            return inject(x);
        case Kind::add: {
            ValueId other = any_value();
            if (other == x) other = x == values_.front() ? values_.back() : values_.front();
            if (other == x) return;
            operation.reads.push_back(other);
            graph.add(std::make_unique<Add>(Add::Ports{y, x, other}));
            break;
        }
    }
    record(operation);
}

// Sums x ← c·x + gate·a − gate·b of a stream x, each usually read by a norm too. All have the same a and b.
void RandomGraph::inject(ValueId x) {
    const ValueId a = any_value(), b = any_value();
    std::vector<Operation> sums(2 + random_() % 2);
    std::vector<std::array<ValueId, 2>> gates;
    for (Operation& sum : sums) {
        const ValueId u = any_value(), v = any_value();
        sum = {Kind::injected, {x, a, b, u, v}, {}, {}};
        sum.parameters.push_back(declare(fmt::format("factor {}", operations_.size() + gates.size()),
                                         {{Dimension::numbers, 1}}, 0.7));
        const ValueId first = gate(sum, u, 1), second = gate(sum, v, 1);
        gates.push_back({first, second});
    }
    for (size_t i = 0; i < sums.size(); ++i) {
        const ValueId y = value("injected");
        sums[i].reads[0] = x;
        sums[i].writes = {y};
        graph.add(std::make_unique<WeightedSum>(
            WeightedSum::Ports{.y = y,
                               .terms = {{.value = x, .parameter = sums[i].parameters.front()},
                                         {.value = a, .gate = gates[i][0]},
                                         {.value = b, .gate = gates[i][1], .factor = -1}}},
            kSequence));
        record(sums[i]);
        if (random_() % 3 > 0) {
            const ValueId normed = value("normed");
            const ParameterId gain = declare(fmt::format("gain {}", operations_.size()), {kWidthExtent}, 1);
            norm({.y = normed, .statistics = {}, .x = y, .parameters = {gain}});
            record({Kind::norm, {y}, {normed}, {gain}});
        }
        x = y;
    }
}

void RandomGraph::record(const Operation& operation) {
    for (const ValueId read : operation.reads) std::erase(unread_, read);
    for (const ValueId written : operation.writes) {
        values_.push_back(written);
        unread_.push_back(written);
    }
    operations_.push_back(operation);
}

// Adds up all values without a reader, so that every parameter has a gradient.
void RandomGraph::add_up() {
    last_ = unread_.front();
    for (size_t i = 1; i < unread_.size(); ++i) {
        const ValueId sum = value("sum");
        graph.add(std::make_unique<Add>(Add::Ports{sum, last_, unread_[i]}));
        operations_.push_back({Kind::add, {last_, unread_[i]}, {sum}, {}});
        last_ = sum;
    }
}

RandomGraph::RandomGraph(uint64_t seed) : random_(seed) {
    tokens = graph.value("tokens", Element::ids, {kTokenExtent}, Holder::batch);
    targets = graph.value("targets", Element::ids, {kTokenExtent}, Holder::batch);
    for (int64_t t = 0; t < kTokens; ++t) {
        token_ids.push_back(static_cast<int32_t>(random_() % kVocabulary));
        target_ids.push_back(random_() % 6 == 0 ? -1 : static_cast<int32_t>(random_() % kVocabulary));
    }
    const Extent rows{Dimension::vocabulary, kVocabulary};
    table_ = declare("embed", {rows, kWidthExtent}, 0);
    head_ = random_() % 2 == 0 ? table_ : declare("head", {rows, kWidthExtent}, 0);
    embed();
    constexpr std::array kKinds = {Kind::linear, Kind::linear,   Kind::activation, Kind::norm,
                                   Kind::norm,   Kind::sum_norm, Kind::weighted,   Kind::injected,
                                   Kind::add,    Kind::embedding};
    const size_t length = 4 + random_() % 14;
    for (size_t i = 0; i < length; ++i) {
        if (random_() % 4 == 0) graph.begin_unit();
        const bool summed = operations_.back().kind == Kind::add;  // a sum is often followed by a norm
        append(summed && random_() % 2 == 0 ? Kind::norm : kKinds[random_() % kKinds.size()]);
    }
    graph.begin_unit();
    add_up();
    table.set_num_units(graph.num_units());
    losses = graph.value("losses", Element::f32, {kTokenExtent}, Holder::model);
    graph.add(
        std::make_unique<Head>(Head::Ports{.losses = losses, .x = last_, .targets = targets, .weight = head_},
                               HeadOptions{.num_tokens = kTokens,
                                           .logit_rows = random_() % 2 == 0 ? kTokens : kTokens / 2,
                                           .vocab_size = kVocabulary,
                                           .padded_vocab_size = kVocabulary}));
}

std::vector<Matrix> RandomGraph::gradients() const {
    using namespace reference;
    std::map<ValueId, Matrix> values, dvalues;
    std::vector<Matrix> dparameters;
    for (const Matrix& p : parameters) dparameters.emplace_back(p.rows, p.cols);
    const auto of = [&](const Operation& o, size_t i) -> const Matrix& {
        return parameters[static_cast<size_t>(o.parameters[i])];
    };
    const auto gain_of = [&](const Operation& o) { return o.parameters.size() > 1 ? of(o, 1) : Matrix(); };
    const auto gates_of = [&](const Operation& o) {
        return narrow_linear_forward(first_columns(values.at(o.reads[3]), kGateColumns), of(o, 1), {}, 1,
                                     GateActivation::sigmoid);
    };
    const auto terms_of = [&](const Operation& o, const auto& in) -> std::vector<reference::WeightedTerm> {
        if (o.kind == Kind::weighted)
            return {{in(0), {}, 1, false}, {in(1), of(o, 0), 1, true}, {in(2), gates_of(o), -1, false}};
        const Matrix second = narrow_linear_forward(first_columns(in(4), kGateColumns), of(o, 2), {}, 1,
                                                    GateActivation::sigmoid);
        return {{in(0), of(o, 0), 1, false}, {in(1), gates_of(o), 1, false}, {in(2), second, -1, false}};
    };
    const auto activation_of = [](Kind kind) {
        return kind == Kind::square ? Activation::relu_squared : kActivation;
    };
    for (const Operation& o : operations_) {
        const auto in = [&](size_t i) -> const Matrix& { return values.at(o.reads[i]); };
        Matrix& y = values[o.writes.back()];
        switch (o.kind) {
            case Kind::embedding:
                y = embedding_forward(token_ids, of(o, 0), {}, {});
                break;
            case Kind::linear:
                y = matmul(in(0), transposed(of(o, 0)));
                if (o.reads[1] != kNoValue) y = plus(y, in(1));
                break;
            case Kind::activation:
            case Kind::square:
                y = activation_forward(in(0), activation_of(o.kind));
                break;
            case Kind::norm:
                y = norm_forward(in(0), of(o, 0), {}, kNorm, kEpsilon).y;
                break;
            case Kind::add:
                y = plus(in(0), in(1));
                break;
            case Kind::weighted:
            case Kind::injected:
                y = weighted_sum_forward(terms_of(o, in), kSequence);
                break;
            case Kind::sum_norm:
                values[o.writes[0]] = weighted_sum_forward(mix_terms(in(0), in(1), of(o, 0)), kSequence);
                y = norm_forward(values[o.writes[0]], gain_of(o), {}, kNorm, kEpsilon).y;
                break;
        }
    }
    const auto give = [](Matrix& to, const Matrix& part) { to = to.empty() ? part : plus(to, part); };
    const Matrix &head = parameters[static_cast<size_t>(head_)], &last = values.at(last_);
    const Matrix dlogits =
        cross_entropy_dlogits(matmul(last, transposed(head)), target_ids, kVocabulary, {}, 1);
    give(dparameters[static_cast<size_t>(head_)], matmul(transposed(dlogits), last));
    dvalues[last_] = matmul(dlogits, head);
    for (auto o = operations_.rbegin(); o != operations_.rend(); ++o) {
        const Matrix dy = dvalues[o->writes.back()];
        const auto in = [&](size_t i) -> const Matrix& { return values.at(o->reads[i]); };
        const auto dp = [&](size_t i) -> Matrix& {
            return dparameters[static_cast<size_t>(o->parameters[i])];
        };
        // Gate i of the operation, of reads[3 + i] and parameters[1 + i].
        const auto give_gate = [&](const Operation& of_gate, size_t i, const Matrix& dgate) {
            const auto gate = narrow_linear_backward(dgate, first_columns(in(3 + i), kGateColumns),
                                                     of(of_gate, 1 + i), {}, 1, GateActivation::sigmoid);
            give(dp(1 + i), gate.dweight);
            Matrix du(kTokens, kWidth);
            for (int64_t t = 0; t < kTokens; ++t)
                for (int64_t column = 0; column < kGateColumns; ++column) du(t, column) = gate.dx(t, column);
            give(dvalues[of_gate.reads[3 + i]], du);
        };
        switch (o->kind) {
            case Kind::embedding:
                give(dp(0), embedding_backward(kVocabulary, token_ids, dy));
                break;
            case Kind::linear:
                give(dp(0), matmul(transposed(dy), in(0)));
                give(dvalues[o->reads[0]], matmul(dy, of(*o, 0)));
                if (o->reads[1] != kNoValue) give(dvalues[o->reads[1]], dy);
                break;
            case Kind::activation:
            case Kind::square:
                give(dvalues[o->reads[0]], activation_backward(dy, in(0), activation_of(o->kind)));
                break;
            case Kind::norm: {
                const auto d = norm_backward(dy, in(0), of(*o, 0), kNorm, kEpsilon);
                give(dp(0), d.dgain);
                give(dvalues[o->reads[0]], d.ds);
                break;
            }
            case Kind::add:
                for (const ValueId read : o->reads) give(dvalues[read], dy);
                break;
            case Kind::weighted:
            case Kind::injected: {
                const auto d = weighted_sum_backward(dy, terms_of(*o, in), kSequence);
                for (size_t i = 0; i < 3; ++i) give(dvalues[o->reads[i]], d[i].dsource);
                // Parameters: the coefficient of one term, then a gate of each term after it.
                const size_t gates = o->parameters.size() - 1, first = 3 - gates;
                give(dp(0), d[first - 1].dcoefficient);
                for (size_t i = 0; i < gates; ++i) give_gate(*o, i, d[first + i].dcoefficient);
                break;
            }
            case Kind::sum_norm: {
                // Either output may have no reader.
                const Matrix none(kTokens, kWidth), &dsum = dvalues[o->writes[0]];
                const auto norm = norm_backward(dy.empty() ? none : dy, values.at(o->writes[0]), gain_of(*o),
                                                kNorm, kEpsilon);
                const auto d = weighted_sum_backward(dsum.empty() ? norm.ds : plus(norm.ds, dsum),
                                                     mix_terms(in(0), in(1), of(*o, 0)), kSequence);
                Matrix dc(1, 2);
                for (size_t j = 0; j < 2; ++j) dc[static_cast<int64_t>(j)] = d[j].dcoefficient[0];
                give(dp(0), dc);
                if (o->parameters.size() > 1) give(dp(1), norm.dgain);
                for (size_t j = 0; j < 2; ++j) give(dvalues[o->reads[j]], d[j].dsource);
                break;
            }
        }
    }
    return dparameters;
}

}  // namespace speedrun::testing
