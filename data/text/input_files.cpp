#include "data/text/input_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "data/shard_patterns.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
    return path.filename().string().starts_with('.');
}

std::vector<std::string> files_in_folder(const std::string& folder) {
    std::vector<std::string> files;
    std::vector<std::string> pending = {folder};
    while (!pending.empty()) {
        const std::string next = std::move(pending.back());
        pending.pop_back();
        std::error_code error, ignored;
        auto entry = fs::directory_iterator(next, error);
        for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
            if (is_hidden(entry->path())) continue;
            if (!entry->is_directory(ignored))
                files.push_back(entry->path().string());
            else if (!entry->is_symlink(ignored))
                pending.push_back(entry->path().string());
        }
        if (error) throw_data("{}: cannot be read: {}", next, error.message());
    }
    if (files.empty()) throw_data("{}: no file in this folder", folder);
    std::sort(files.begin(), files.end());
    return files;
}

void add_path(const std::string& path, std::vector<std::string>& files) {
    std::error_code ignored;  // reported by the reader of the path
    if (!fs::is_directory(path, ignored)) {
        files.push_back(path);
        return;
    }
    const std::vector<std::string> inside = files_in_folder(path);
    files.insert(files.end(), inside.begin(), inside.end());
}

void add_input(const std::string& input, std::vector<std::string>& files) {
    std::error_code error;
    if (fs::exists(input, error)) return add_path(input, files);
    if (error == std::errc::permission_denied) throw_data("{}: cannot be read: {}", input, error.message());
    const std::vector<std::string> matches = matching_files(input);
    if (matches.empty() && input.starts_with('@') && fs::exists(input.substr(1)))
        throw_data("{}: no such file; a file that lists inputs is given as --input-list {}", input,
                   input.substr(1));
    if (matches.empty() && input.find_first_of("*?[{") == input.npos)
        throw_data("{}: cannot be read: no such file or folder", input);
    if (matches.empty()) throw_data("no file matches the input '{}'", input);
    for (const std::string& match : matches) add_path(match, files);
}

void add_list(const std::string& list, std::vector<std::string>& files) {
    const std::string content = read_text_file(list);
    const size_t before = files.size();
    int64_t number = 1;
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    std::string_view text = content;
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    for (; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty() || line.starts_with('#')) continue;
        try {
            add_input(std::string(line), files);
        } catch (const Error& error) {
            throw Error(error.code(), fmt::format("{}: line {}: {}", list, number, error.what()));
        }
    }
    if (files.size() == before) throw_data("{}: no input in this list, expected a path per line", list);
}

void expect_unique(const std::vector<std::string>& files) {
    std::map<std::pair<dev_t, ino_t>, std::string> seen;
    for (const std::string& file : files) {
        struct stat status {};
        if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
            continue;  // reported by its reader
        const auto [first, is_new] = seen.emplace(std::pair(status.st_dev, status.st_ino), file);
        if (!is_new)
            throw_data("{}: the inputs name this file twice{}", file,
                       first->second == file ? "" : ", also as " + first->second);
    }
}

}  // namespace

std::vector<std::string> input_files(const std::vector<std::string>& inputs, const std::string& list) {
    std::vector<std::string> files;
    for (const std::string& input : inputs) add_input(input, files);
    if (!list.empty()) add_list(list, files);
    expect_unique(files);
    return files;
}

}  // namespace speedrun
