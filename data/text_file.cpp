#include "data/text_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/open_file.h"
#include "kernels/device/error.h"

namespace speedrun {

std::string read_text_file(const std::string& path, size_t most) {
    const OpenFile file(path);
    const auto expect_at_most = [&](size_t bytes) {
        if (bytes > most) throw_data("{}: has {} bytes or more, at most {} are read", path, bytes, most);
    };
    expect_at_most(file.size());
    std::string text;
    std::string piece(size_t{1} << 16, '\0');
    while (const size_t got = file.read(piece)) {
        text.append(piece, 0, got);
        expect_at_most(text.size());
        if (got == piece.size()) piece.resize(std::min(2 * piece.size(), size_t{1} << 22));
    }
    return text;
}

bool is_utf8(std::string_view text) {
    try {
        (void)nlohmann::json(std::string(text)).dump();
        return true;
    } catch (const nlohmann::json::type_error&) {
        return false;
    }
}

std::string shown_text(std::string_view text) {
    constexpr size_t kLongest = 100;
    const std::string_view part = text.substr(0, std::min(text.size(), kLongest));
    const std::string quoted =
        nlohmann::json(std::string(part)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2) + (part.size() < text.size() ? "..." : "");
}

}  // namespace speedrun
