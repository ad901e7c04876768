#include "train/config/presets.h"

#include "data/json_text.h"
#include "train/config/config.h"

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

void merge_over_preset(Json& model) {
    if (!model.is_object()) return;
    const Json name = model.value("preset", Json(ModelConfig().preset));
    const auto preset = presets().find(name.is_string() ? name.get<std::string>() : "");
    if (preset == presets().end()) return;
    Json merged = parse_json<Json>(preset->second);
    merge(merged, model);
    drop_absent_tables(merged);
    merged["preset"] = kNoPreset;
    model = std::move(merged);
}

}  // namespace speedrun
