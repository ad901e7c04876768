#include "train/runlog/run_origin.h"

#include <fmt/format.h>

#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

using Json = nlohmann::ordered_json;

std::string run_origin_to_json(const RunOrigin& origin) {
    const Json step = origin.step < 0 ? Json() : Json(origin.step);
    const Json json = {
        {"kind", origin.kind}, {"path", origin.path}, {"step", step}, {"xxh128", origin.xxh128}};
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

RunOrigin run_origin_from_json(std::string_view text, const std::string& path) {
    try {
        const Json json = parse_json<Json>(text);
        RunOrigin origin;
        origin.kind = json.at("kind").get<std::string>();
        origin.path = json.at("path").get<std::string>();
        origin.step = json.at("step").is_null() ? -1 : whole_number(json.at("step"));
        origin.xxh128 = json.at("xxh128").get<std::string>();
        return origin;
    } catch (const Json::exception& error) {
        throw_data("{}: {}", path, error.what());
    } catch (const JsonError& error) {
        throw_data("{}: {}", path, error.what());
    }
}

std::string describe(const RunOrigin& origin) {
    return fmt::format("{} of {}{}, XXH128 {}", origin.kind, origin.path,
                       origin.step < 0 ? "" : fmt::format(", step {}", origin.step), origin.xxh128);
}

}  // namespace speedrun
