#include "train/records/reference_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

std::string short_commit(const CountsReference& r) {
    return r.git_sha.substr(0, 9) + (r.dirty ? "-dirty" : "");
}

std::string note_of(const CountsReference& r, const HardwareClass& board, bool markdown) {
    const std::string path =
        fmt::format("records/{}/references/{}", r.track, std::filesystem::path(r.path).filename().string());
    const std::string elsewhere =
        r.hardware_class == board
            ? ""
            : fmt::format(" Its time is that of other hardware, {}.", r.hardware_class.text());
    const std::string name = markdown ? fmt::format("[counts (reference)]({})", path)
                                      : fmt::format("counts (reference, {})", path);
    return fmt::format(
        "{}: a table of counts of {} tokens of context, which no gradient has trained, reaches {:.4f} in {:.2f} s on one core.{}\n",
        name, r.order, r.loss, r.seconds(), elsewhere);
}

}  // namespace

std::vector<CountsReference> references_of(const HardwareClass& board,
                                           const std::vector<CountsReference>& references) {
    std::vector<CountsReference> found = references;
    if (board.gpus > 0) found.clear();
    std::stable_sort(found.begin(), found.end(), [](const CountsReference& a, const CountsReference& b) {
        return a.seconds() < b.seconds();
    });
    const auto other = [&](const CountsReference& r) { return r.hardware_class != board; };
    if (!std::all_of(found.begin(), found.end(), other)) {
        std::erase_if(found, other);
        return found;
    }
    const auto distance = [&](const CountsReference& r) {
        return std::abs(r.hardware_class.cores - board.cores);
    };
    const auto nearest = std::min_element(
        found.begin(), found.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    return nearest == found.end() ? std::vector<CountsReference>{} : std::vector{*nearest};
}

std::vector<std::string> reference_cells(const CountsReference& reference,
                                         const std::vector<std::string>& heads) {
    std::vector<std::string> cells;
    for (const std::string& head : heads) {
        if (head == "record")
            cells.emplace_back("counts (reference)");
        else if (head == "training s")
            cells.push_back(fmt::format("{:.2f}", reference.seconds()));
        else if (head == "loss")
            cells.push_back(fmt::format("{:.4f}", reference.loss));
        else if (head == "date")
            cells.push_back(reference.date);
        else if (head == "hardware")
            cells.push_back(reference.hardware_text());
        else if (head == "commit")
            cells.push_back(short_commit(reference));
        else
            cells.emplace_back("-");
    }
    return cells;
}

std::string reference_note(const HardwareClass& board, const std::vector<CountsReference>& references,
                           bool markdown) {
    std::string text;
    for (const CountsReference& r : references_of(board, references))
        text += (markdown ? "\n" : "") + note_of(r, board, markdown);
    return text;
}

std::string reference_row_json(const CountsReference& r) {
    const Json json = {{"name", "counts"},
                       {"reference", true},
                       {"file", std::filesystem::path(r.path).filename().string()},
                       {"track", r.track},
                       {"order", r.order},
                       {"date", r.date},
                       {"loss", r.loss},
                       {"seconds", r.seconds()},
                       {"hardware", r.hardware_text()},
                       {"hardware_class", r.hardware_class.text()},
                       {"git_sha", r.git_sha + (r.dirty ? "-dirty" : "")}};
    return json.dump(2);
}

}  // namespace speedrun
