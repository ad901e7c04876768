#include "train/commands/multiple_choice.h"

#include <algorithm>
#include <sstream>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;

ChoiceItem item_of(const SortedJson& json) {
    if (!json.is_object()) throw JsonError("an object is expected, found " + shown(json));
    for (const char* key : {"context", "endings", "label"})
        if (!json.contains(key)) throw JsonError(fmt::format("no \"{}\"", key));
    ChoiceItem item;
    const SortedJson &context = json.at("context"), &endings = json.at("endings");
    if (!context.is_string()) throw JsonError("context: text is expected, found " + shown(context));
    item.context = context.get<std::string>();
    if (!endings.is_array() || endings.size() < 2)
        throw JsonError("endings: a list of two texts or more is expected, found " + shown(endings));
    for (const SortedJson& ending : endings) {
        if (!ending.is_string() || ending.get<std::string>().empty())
            throw JsonError("endings: each is a text that is not empty, found " + shown(ending));
        item.endings.push_back(ending.get<std::string>());
    }
    item.label = whole_number(json.at("label"));
    if (item.label < 0 || item.label >= static_cast<int64_t>(item.endings.size()))
        throw JsonError(
            fmt::format("label: {}, there are {} endings, counted from 0", item.label, item.endings.size()));
    return item;
}

}  // namespace

std::vector<ChoiceItem> read_choice_items(const std::string& path) {
    std::vector<ChoiceItem> items;
    std::istringstream lines(read_text_file(path));
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        try {
            items.push_back(item_of(parse_json<SortedJson>(line)));
        } catch (const std::exception& error) {
            throw_data("{}: line {}: {}", path, number, error.what());
        }
    }
    if (items.empty()) throw_data("{}: no item in it", path);
    return items;
}

void ChoiceResult::add(const std::vector<EndingScore>& endings, int64_t label) {
    const auto best = [&](const auto& score) {
        const auto found =
            std::max_element(endings.begin(), endings.end(),
                             [&](const EndingScore& a, const EndingScore& b) { return score(a) < score(b); });
        return found - endings.begin();
    };
    ++items;
    right += best([](const EndingScore& e) { return e.normalised(); }) == label ? 1 : 0;
    right_by_sum += best([](const EndingScore& e) { return e.sum; }) == label ? 1 : 0;
}

}  // namespace speedrun
