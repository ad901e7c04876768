#include "train/hf/hf_index.h"

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

std::map<std::string, std::string> read_hf_index(const std::string& path) {
    using Json = nlohmann::json;
    std::map<std::string, std::string> index;
    try {
        const Json root = parse_json<Json>(read_text_file(path));
        if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
            throw JsonError("no object \"weight_map\"");
        for (const auto& [tensor, value] : root["weight_map"].items()) {
            const std::string file = value.is_string() ? value.get<std::string>() : "";
            if (file.empty() || file == ".." || file.find('/') != std::string::npos)
                throw JsonError(fmt::format("weight_map.{}: expected a file name without folders, found {}",
                                            shown_key<Json>(tensor), shown(value)));
            index.emplace(tensor, file);
        }
    } catch (const JsonError& error) {
        throw_data("{}: {}", path, error.what());
    }
    return index;
}

}  // namespace speedrun
