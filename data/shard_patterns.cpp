#include "data/shard_patterns.h"

#include <glob.h>
#include <limits.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "data/errno_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// glibc's own expansion of braces (GLOB_BRACE) is recursive and has no limit.
constexpr size_t kMaxAlternatives = 10'000, kMaxNesting = 32, kShownCharacters = 80;

std::string shown_pattern(const std::string& pattern) {
    return pattern.size() <= kShownCharacters ? pattern : pattern.substr(0, kShownCharacters) + "...";
}

// Returns the length of the leading components that exist literally, including the '/' after them.
size_t literal_length(const std::string& pattern) {
    size_t length = 0;
    while (length < pattern.size()) {
        const size_t slash = pattern.find('/', length);
        const size_t end = slash == std::string::npos ? pattern.size() : slash;
        std::error_code error;
        if (end - length > NAME_MAX || end > PATH_MAX) break;
        if (end > length && !fs::exists(pattern.substr(0, end), error)) break;
        length = slash == std::string::npos ? end : slash + 1;
    }
    return length;
}

struct Braces {
    size_t begin = 0, end = 0;       // index of '{', and of the character after '}'
    std::vector<size_t> separators;  // indices of '{', the commas of this group, and '}'
};

// Returns the first group in braces from `from`; nullopt if braces do not match, as in glob(7). "{}" is no group.
std::optional<Braces> find_braces(const std::string& pattern, size_t from) {
    for (size_t begin = pattern.find('{', from); begin != std::string::npos;
         begin = pattern.find('{', begin + 1)) {
        Braces braces{.begin = begin, .separators = {begin}};
        size_t depth = 0;
        for (size_t i = begin; i < pattern.size(); ++i) {
            const char c = pattern[i];
            if (c == '\\') ++i;
            if (c == '{') ++depth;
            if (depth > kMaxNesting)
                throw_usage("pattern '{}': braces are nested deeper than {} levels", shown_pattern(pattern),
                            kMaxNesting);
            if (c == ',' && depth == 1) braces.separators.push_back(i);
            if (c != '}' || --depth > 0) continue;
            braces.separators.push_back(i);
            braces.end = i + 1;
            break;
        }
        if (braces.end == 0) return std::nullopt;
        if (braces.end > begin + 2) return braces;
    }
    return std::nullopt;
}

// Returns the pattern without braces: one string per combination of alternatives.
std::vector<std::string> expand_braces(const std::string& pattern) {
    struct Pending {
        std::string text;
        size_t done;  // text before this index has no braces
    };
    std::vector<Pending> pending = {{pattern, literal_length(pattern)}};
    std::vector<std::string> expanded;
    while (!pending.empty()) {
        const auto [text, done] = std::move(pending.back());
        pending.pop_back();
        const std::optional<Braces> braces = find_braces(text, done);
        if (!braces) {
            expanded.push_back(text);
        } else {
            const std::vector<size_t>& at = braces->separators;
            for (size_t i = at.size() - 1; i > 0; --i) {  // the last alternative is pushed first
                const std::string choice = text.substr(at[i - 1] + 1, at[i] - at[i - 1] - 1);
                pending.push_back(
                    {text.substr(0, braces->begin) + choice + text.substr(braces->end), braces->begin});
            }
        }
        if (expanded.size() + pending.size() > kMaxAlternatives)
            throw_usage("pattern '{}': its braces expand to more than {} names; list them, or use * or ?",
                        shown_pattern(pattern), kMaxAlternatives);
    }
    return expanded;
}

// Returns the pattern with its literal part quoted.
std::string quote_literal(const std::string& pattern) {
    const size_t length = literal_length(pattern);
    std::string quoted;
    for (size_t i = 0; i < length; ++i) {
        if (std::string_view("*?[]\\{}~").find(pattern[i]) != std::string_view::npos) quoted += '\\';
        quoted += pattern[i];
    }
    return quoted + pattern.substr(length);
}

// glob(3) reads ** as *, which matches a single level of folders.
void expect_no_double_star(const std::string& pattern) {
    for (const fs::path& component : fs::path(pattern.substr(literal_length(pattern)))) {
        if (component == "**")
            throw_usage(
                "pattern '{}': ** is not supported: name each level of folders by *, or the folder: `prepare` reads it with its "
                "subfolders",
                shown_pattern(pattern));
    }
}

// Appends the matches of a pattern without braces.
void add_matches(const std::string& pattern, std::vector<std::string>& files) {
    if (pattern.size() >= PATH_MAX)
        throw_usage("pattern '{}': {} characters, a path has at most {}", shown_pattern(pattern),
                    pattern.size(), PATH_MAX - 1);
    expect_no_double_star(pattern);
    glob_t found{};
    const int result = ::glob(quote_literal(pattern).c_str(), GLOB_TILDE | GLOB_NOSORT, nullptr, &found);
    const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&found, ::globfree);
    if (result == GLOB_NOMATCH) return;
    if (result != 0) throw_data("searching for '{}' failed: {}", shown_pattern(pattern), errno_text());
    files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
}

// Returns how to make the files of a pattern that has no match.
std::string cure_of(const std::string& pattern) {
    const fs::path path = pattern, folder = path.has_parent_path() ? path.parent_path() : ".";
    std::error_code error;
    if (path.filename().string().starts_with("val") && fs::exists(folder / "dataset.json", error)) {
        std::vector<std::string> shards;
        add_matches((folder / "val_*.bin").string(), shards);
        if (shards.empty())
            return fmt::format(
                "the dataset in {} has no validation shards: `prepare --val-fraction 0.1` holds out a tenth of its text, "
                "`--val-every K` each K-th document",
                folder.string());
    }
    return "data/kjv/prepare.sh or data/fineweb10B/download.sh makes a dataset (if installed, in share/speedrun), and "
           "`prepare` one of your text";
}

}  // namespace

std::vector<std::string> matching_files(const std::string& pattern) {
    std::vector<std::string> files;
    for (const std::string& plain : expand_braces(pattern)) add_matches(plain, files);
    std::sort(files.begin(), files.end());
    return files;
}

std::vector<std::string> expand_globs(const std::vector<std::string>& patterns) {
    std::vector<std::string> files;
    for (const std::string& pattern : patterns) {
        const std::vector<std::string> matches = matching_files(pattern);
        files.insert(files.end(), matches.begin(), matches.end());
        if (!matches.empty()) continue;
        throw_data("no file matches '{}'; {}", shown_pattern(pattern), cure_of(pattern));
    }
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace speedrun
