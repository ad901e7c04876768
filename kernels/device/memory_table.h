// MemoryTable: bytes per owner. Every Buffer enters itself. `plan` and a run print the same table from the
// same code: `plan` builds the whole model on a device that allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace speedrun {

enum class MemoryCategory : uint8_t {
    parameters,
    master_weights,
    gradients,
    optimizer_state,
    activations,
    workspace,
    data
};
constexpr int kNumMemoryCategories = 7;
std::string_view name_of(MemoryCategory category);

class MemoryTable {
  public:
    struct Entry {
        std::string name;
        MemoryCategory category;
        int64_t bytes;
    };

    void add(const std::string& name, MemoryCategory category, int64_t bytes);
    void remove(const std::string& name, MemoryCategory category, int64_t bytes);

    int64_t total() const;
    int64_t total(MemoryCategory category) const;
    const std::vector<Entry>& entries() const { return entries_; }
    // One line per non-empty category, with the largest entries of each, and the sum. Unit: MiB.
    std::string print() const;

  private:
    std::vector<Entry> entries_;
};

}  // namespace speedrun
