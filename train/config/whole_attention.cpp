#include "train/config/whole_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace speedrun {

namespace {

// Returns the keys that need all heads, separated by commas.
std::string reason_of(const AttentionConfig& attention) {
    std::string reason;
    const auto add = [&](const std::string& name) { reason += (reason.empty() ? "" : ", ") + name; };
    for (const auto& [key, part] : attention.parts.all())
        if (part->needs_all_heads()) add(key);
    if (!attention.values.empty()) add("values");
    return reason;
}

}  // namespace

WholeAttention whole_attention(const ModelParts& parts) {
    WholeAttention whole;
    const std::vector<std::optional<LayerConfig>> layers = parts.layers.resolved();
    std::set<std::string> added;
    for (const StreamPartConfig& part : parts.output)
        for (const SumTerm& term : part.terms)
            if (!term.table.empty()) added.insert(term.table);
    // Iterates to a fixed point: a whole table makes all attention that reads it whole.
    for (bool found = true; found;) {
        found = false;
        for (size_t i = 0; i < layers.size(); ++i) {
            const auto number = static_cast<int64_t>(i);
            if (!layers[i] || !layers[i]->attention || whole.layers.count(number)) continue;
            const AttentionConfig& attention = *layers[i]->attention;
            const std::string& table = attention.value_table;
            std::string reason = reason_of(attention);
            if (reason.empty() && (added.count(table) || whole.tables.count(table)))
                reason = "rows of " + table;
            if (reason.empty()) continue;
            whole.layers[number] = std::move(reason);
            if (!table.empty()) whole.tables.insert(table);
            found = true;
        }
    }
    return whole;
}

std::string WholeAttention::describe() const {
    std::vector<std::pair<std::string, std::string>> numbers;  // reason -> layers, by first layer
    for (const auto& [layer, reason] : layers) {
        const auto at = std::find_if(numbers.begin(), numbers.end(),
                                     [&, why = reason](const auto& known) { return known.first == why; });
        if (at == numbers.end())
            numbers.emplace_back(reason, std::to_string(layer));
        else
            at->second += ", " + std::to_string(layer);
    }
    std::string text = layers.size() == 1 ? "attention of layer" : "attention of layers";
    for (const auto& [reason, those] : numbers)
        text += fmt::format("{} {} ({})", text.back() == ')' ? "," : "", those, reason);
    for (const std::string& table : tables) text += ", table " + table;
    return text;
}

}  // namespace speedrun
