#include "train/config/presets.h"

#include <algorithm>

#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

void merge(Json& target, const Json& changes) {
    for (const auto& [key, value] : changes.items()) {
        const auto present = target.find(key);
        if (value.is_object() && present != target.end() && present->is_object()) {
            merge(*present, value);
        } else {
            target[key] = value;
        }
    }
}

void drop_absent_tables(Json& model) {
    const auto tables = model.find("tables");
    if (tables == model.end() || !tables->is_object()) return;
    Json kept = Json::object();
    for (const auto& [name, table] : tables->items())
        if (!table.is_null()) kept[name] = table;
    *tables = std::move(kept);
}

}  // namespace

std::vector<std::string> preset_words() {
    std::vector<std::string> words;
    for (const Preset& preset : presets()) words.emplace_back(preset.name);
    words.emplace_back(kNoPreset);
    return words;
}

void merge_over_preset(Json& model) {
    if (!model.is_object()) return;
    const Json chosen = model.value("preset", Json(kDefaultPreset));
    const auto preset = std::find_if(presets().begin(), presets().end(),
                                     [&](const Preset& known) { return chosen == known.name; });
    if (preset == presets().end()) return;
    Json merged = parse_json<Json>(preset->text);
    merge(merged, model);
    drop_absent_tables(merged);
    merged["preset"] = kNoPreset;
    model = std::move(merged);
}

}  // namespace speedrun
