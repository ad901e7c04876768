#include "train/commands/host_list.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

bool has_only(const std::string& text, const std::string& allowed) {
    return std::all_of(text.begin(), text.end(), [&](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || allowed.find(c) != std::string::npos;
    });
}

// True for a part of a name: not empty, and not an option of ssh.
bool is_word(const std::string& text, const std::string& allowed) {
    return !text.empty() && text.front() != '-' && has_only(text, allowed);
}

// True for NAME, an address, [IPV6], each optionally after USER@. No character except the brackets has a meaning for a shell.
bool is_host(const std::string& name) {
    const size_t at = name.find('@');
    if (at != std::string::npos && !is_word(name.substr(0, at), "._-")) return false;
    const std::string host = at == std::string::npos ? name : name.substr(at + 1);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']')
        return is_word(host.substr(1, host.size() - 2), ":.%_-");
    return is_word(host, "._:-");
}

}  // namespace

std::vector<LaunchHost> read_launch_hosts(const std::string& path) {
    std::istringstream file;
    try {
        file.str(read_text_file(path));
    } catch (const Error& error) {
        throw_usage("--hosts {}", error.what());
    }
    std::vector<LaunchHost> hosts;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        std::istringstream words(line.substr(0, line.find('#')));
        LaunchHost host;
        if (!(words >> host.name)) continue;
        if (!is_host(host.name))
            throw_usage(
                "{}: line {}: '{}' is no name of a host: letters, digits and . _ - :, also as USER@NAME or [IPV6]",
                path, number, host.name);
        for (std::string word; words >> word;) {
            constexpr int kMaxDigits = 6;
            const std::string key = "slots=", digits = word.starts_with(key) ? word.substr(key.size()) : "";
            if (digits.empty() || digits.size() > kMaxDigits ||
                digits.find_first_not_of("0123456789") != std::string::npos || std::stoi(digits) == 0)
                throw_usage("{}: line {}: expected 'NAME slots=N', found '{}'", path, number,
                            shown_text(line));
            host.slots = std::stoi(digits);
        }
        hosts.push_back(host);
    }
    if (hosts.empty()) throw_usage("--hosts {}: names no host", path);
    return hosts;
}

}  // namespace speedrun
