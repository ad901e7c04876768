#include "kernels/device/memory_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

std::string_view name_of(MemoryCategory category) {
    static constexpr std::array<std::string_view, kNumMemoryCategories> kNames = {
        "parameters", "master weights", "gradients", "optimizer state", "activations", "workspace", "data"};
    return kNames[static_cast<size_t>(category)];
}

void MemoryTable::add(const std::string& name, MemoryCategory category, int64_t bytes) {
    entries_.push_back({name, category, bytes});
}

void MemoryTable::remove(const std::string& name, MemoryCategory category, int64_t bytes) {
    auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
        return e.name == name && e.category == category && e.bytes == bytes;
    });
    if (it != entries_.end()) entries_.erase(it);
}

int64_t MemoryTable::total() const {
    int64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.bytes;
    return sum;
}

int64_t MemoryTable::total(MemoryCategory category) const {
    int64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.category == category ? entry.bytes : 0;
    return sum;
}

std::string MemoryTable::print() const {
    constexpr double kMiB = 1024.0 * 1024.0;
    std::string text = fmt::format("  {:<16} {:>10}  {:>7}  {}\n", "memory", "MiB", "buffers", "largest");
    for (int i = 0; i < kNumMemoryCategories; ++i) {
        const auto category = static_cast<MemoryCategory>(i);
        const Entry* largest = nullptr;
        int64_t count = 0;
        for (const Entry& entry : entries_) {
            if (entry.category != category) continue;
            ++count;
            if (!largest || entry.bytes > largest->bytes) largest = &entry;
        }
        if (!largest) continue;
        text += fmt::format("  {:<16} {:>10.1f}  {:>7}  {} ({:.1f})\n", name_of(category),
                            total(category) / kMiB, count, largest->name, largest->bytes / kMiB);
    }
    text += fmt::format("  {:<16} {:>10.1f}\n", "total", total() / kMiB);
    return text;
}

}  // namespace speedrun
