#include "kernels/cuda/vendor/algorithm_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace speedrun {

AlgorithmCache::AlgorithmCache(std::string file, std::string owner)
    : file_(std::move(file)), owner_(std::move(owner)) {
    std::ifstream in(file_);
    std::string line;
    if (!std::getline(in, line) || line != owner_) return;
    while (std::getline(in, line)) {
        std::istringstream fields(line);
        std::string key;
        AlgorithmWords words{};
        fields >> key >> std::hex;
        for (uint64_t& word : words) fields >> word;
        if (fields) entries_[key] = words;  // a damaged line is as good as none
    }
}

std::optional<AlgorithmWords> AlgorithmCache::find(const std::string& key) const {
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return std::nullopt;
    return entry->second;
}

void AlgorithmCache::store(const std::string& key, const AlgorithmWords& words) {
    entries_[key] = words;
    changed_ = true;
}

bool AlgorithmCache::save() {
    if (file_.empty() || !changed_) return true;
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), error);
    static std::atomic<int> saved = 0;  // by all ranks of this process, which may be threads
    const std::string temporary = fmt::format("{}.{}.{}", file_, getpid(), saved++);
    {
        std::ofstream out(temporary);
        out << owner_ << "\n";
        for (const auto& [key, words] : entries_) {
            out << key;
            for (uint64_t word : words) out << fmt::format(" {:x}", word);
            out << "\n";
        }
        out.close();
        if (!out) {
            std::filesystem::remove(temporary, error);
            return false;
        }
    }
    std::filesystem::rename(temporary, file_, error);
    if (error) return false;
    changed_ = false;
    return true;
}

}  // namespace speedrun
