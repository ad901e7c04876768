#include "kernels/cuda/vendor/algorithm_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace speedrun {

namespace {

// Locks a separate file next to `file`: the file itself is replaced, so its lock would be lost. Processes and
// threads wait for each other. On a file system without locks nothing waits, and the file is still complete.
class FileLock {
  public:
    explicit FileLock(const std::string& file)
        : descriptor_(open((file + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
        if (descriptor_ >= 0) static_cast<void>(flock(descriptor_, LOCK_EX));
    }
    ~FileLock() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

  private:
    const int descriptor_;
};

}  // namespace

AlgorithmCache::AlgorithmCache(std::string file, std::string owner)
    : file_(std::move(file)), owner_(std::move(owner)) {
    read();
}

void AlgorithmCache::read() {
    std::ifstream in(file_);
    std::string line;
    if (!std::getline(in, line) || line != owner_) return;
    while (std::getline(in, line)) {
        std::istringstream fields(line);
        std::string key;
        AlgorithmWords words{};
        fields >> key >> std::hex;
        for (uint64_t& word : words) fields >> word;
        if (fields) entries_[key] = words;  // damaged lines are skipped
    }
}

std::optional<AlgorithmWords> AlgorithmCache::find(const std::string& key) const {
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return std::nullopt;
    return entry->second;
}

AlgorithmWords AlgorithmCache::agree(const std::string& key, const AlgorithmWords& words) {
    if (file_.empty()) return entries_[key] = words;
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), error);
    const std::optional<AlgorithmWords> refused = find(key);  // an entry that the library refused: it is
                                                              // timed again
    const FileLock lock(file_);
    read();
    const std::optional<AlgorithmWords> theirs = find(key);
    if (theirs && theirs != refused) return *theirs;
    entries_[key] = words;
    static_cast<void>(write());
    return words;
}

// Writes a temporary file, unique even without locks, and renames it: readers take no lock and always see a
// complete file.
bool AlgorithmCache::write() const {
    std::error_code error;
    static std::atomic<int> written = 0;  // unique over ranks that are threads of this process
    const std::string temporary = fmt::format("{}.{}.{}", file_, getpid(), written++);
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
    return !error;
}

}  // namespace speedrun
