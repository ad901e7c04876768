// What is added to the stream and to values from other places, and the networks that compute by how much.
#include <algorithm>
#include <set>

#include "kernels/device/error.h"
#include "kernels/ops/combine.h"
#include "train/config/model_parts.h"

namespace speedrun {

namespace {

constexpr const char* kComputes =
    "of model.networks: it computes this number for each token, from this start; empty: none does";

void list_injected(FieldVisitor& v, const char* name, const char* doc, std::vector<InjectedConfig>& values) {
    v.list(
        name, doc, values.size(), [&](size_t n) { values.assign(n, {}); },
        [&](size_t i, FieldVisitor& inner) { values[i].fields(inner); });
}

}  // namespace

void NetworkConfig::fields(FieldVisitor& v) {
    v.field(
        "input", input,
        "what it reads of each token: \"first\" (x0, what the input gave before anything was injected), \"input\" "
        "(what entered the first layer), or \"after 3\" (the stream as layer 3 gave it)");
    v.field("hidden", hidden, "width between its two matrices", {1, kMaxNarrow});
    v.section("init", "its first matrix at the start; the second is zero",
              [this](FieldVisitor& s) { init.fields(s); });
    v.field("scale", scale, "what it computes is multiplied by this", {1e-6, 1e6});
    v.field("learned_scale", learned_scale,
            "a name makes the scale a learned number (networks.NAME), which networks of the same name share");
}

void AttentionConfig::check_factors(const std::string& key) const {
    if (out_scale != 0 && !join)
        throw_usage(
            "{}.out_scale {}: a factor beside p of a join, which is not there: say \"join\": {{}}, or 0", key,
            out_scale);
}

std::string InjectedConfig::value_name() const {
    std::string name = table.empty() ? of : table;
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
}

void InjectedConfig::fields(FieldVisitor& v) {
    v.field("table", table, "whose rows are added; empty: a place of the stream");
    v.field(
        "of", of,
        "without a table \"first\" (x0, what the input gave before anything was injected), \"input\" (what entered the first "
        "layer) or \"after 3\" (what layer 3 gave)");
    v.field("start", start, "their learned factor at the start", {-1e6, 1e6});
    v.field("network", network, kComputes);
}

InjectedConfig added_by(const StreamPartConfig& part) {
    return {.table = part.table, .of = part.of, .start = part.start, .network = part.network};
}

void JoinConfig::fields(FieldVisitor& v) {
    v.field("stream", stream, "r at the start", {-1e6, 1e6});
    v.field("output", output, "p at the start", {-1e6, 1e6});
    v.field("network", network,
            "of model.networks: it computes r and p for each token, from these starts; empty: none does");
    list_injected(v, "inject", "what is added as well, each times a learned factor", inject);
}

void JoinConfig::validate(const std::string& key) const {
    constexpr size_t kMost = kMaxTerms - 2;
    if (inject.size() > kMost)
        throw_usage("{}.inject: {} are injected, at most {} are possible", key, inject.size(), kMost);
    std::set<std::string> seen;
    for (size_t i = 0; i < inject.size(); ++i) {
        const std::string& table = inject[i].table;
        if (!seen.insert(inject[i].value_name()).second)
            throw_usage("{}.inject[{}].{}: \"{}\" is injected twice", key, i, table.empty() ? "of" : "table",
                        table.empty() ? inject[i].of : table);
        for (const char* taken : {"stream", "output", "first"})
            if (table == taken)
                throw_usage(
                    "{}.inject[{}].table: another factor is called {}_scale, name the table differently", key,
                    i, taken);
    }
}

void MixConfig::fields(FieldVisitor& v) {
    v.field("start", start, "a at the start; b is 0", {-1e6, 1e6});
    v.field("network", network, "of model.networks: it computes a for each token; empty: none does");
    list_injected(v, "add", "what is added instead of b*x0, each times a learned factor", add);
}

void SkipConfig::fields(FieldVisitor& v) {
    v.field("from", from, "layer whose output is added", {0, 1000});
    v.field("to", to, "layer before which it is added", {0, 1000});
    v.field("start", start, "s at the start; the factor is sigmoid(s)", {-1e6, 1e6});
    v.field(
        "network", network,
        "of model.networks: it computes a second factor for each token, which no sigmoid bounds; empty: none does");
    v.field("network_start", network_start, "that factor at the start", {-1e6, 1e6});
}

std::vector<const InjectedConfig*> LayerConfig::injected() const {
    std::vector<const InjectedConfig*> all;
    const auto note = [&](const std::vector<InjectedConfig>& some) {
        for (const InjectedConfig& injected : some) all.push_back(&injected);
    };
    if (mix) note(mix->add);
    if (attention) {
        note(attention->add_to_values);
        if (attention->join) note(attention->join->inject);
    }
    if (mlp && mlp->join) note(mlp->join->inject);
    return all;
}

}  // namespace speedrun
