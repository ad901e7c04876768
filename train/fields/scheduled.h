// Numbers of a config that may differ from stage to stage of the schedule (schedule.stages).
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/error.h"

namespace speedrun {

// A step of a run: its stage, the share of the stage's steps before it, and the number of steps left in the run, including
// itself.
struct StagePoint {
    int64_t stage = 0;
    double share = 0;
    int64_t left = std::numeric_limits<int64_t>::max();
};

// One number for the whole run, or one entry for each stage. An entry is a number, or a ramp. A ramp has `from` at the
// first step of the stage, and would reach `to` at the first step after the stage.
template <class T>
class Scheduled {
  public:
    struct Entry {
        T from{}, to{};
        bool operator==(const Entry&) const = default;
        bool is_number() const { return from == to; }
    };

    Scheduled(T value = {}) : entries_{{value, value}} {}
    // One entry or more.
    explicit Scheduled(std::vector<Entry> entries) : entries_(std::move(entries)) {
        if (entries_.empty()) throw_internal("a scheduled number without entries");
    }

    const std::vector<Entry>& entries() const { return entries_; }
    bool is_number() const { return entries_.size() == 1 && entries_.front().is_number(); }
    bool fits(int64_t num_stages) const {
        return entries_.size() == 1 || static_cast<int64_t>(entries_.size()) == num_stages;
    }
    const Entry& in(int64_t stage) const {
        return entries_[entries_.size() == 1 ? 0 : static_cast<size_t>(stage)];
    }
    T at(const StagePoint& point) const {
        const Entry& entry = in(point.stage);
        if (entry.is_number()) return entry.from;
        return static_cast<T>(static_cast<double>(entry.from) +
                              point.share * static_cast<double>(entry.to - entry.from));
    }
    // The only number, as in a config of one stage (Config::in_stage). Throws an internal error if there are several.
    operator T() const {
        if (!is_number()) throw_internal("expected a single value, but it has {} entries", entries_.size());
        return entries_.front().from;
    }
    // Compares two Scheduled. A plain number compares with the converted number.
    template <std::same_as<Scheduled> Other>
    bool operator==(const Other& other) const {
        return entries_ == other.entries_;
    }

  private:
    std::vector<Entry> entries_;
};

}  // namespace speedrun

// Formats the number ("{}" only).
template <class T>
struct fmt::formatter<speedrun::Scheduled<T>> {
    constexpr auto parse(fmt::format_parse_context& context) const { return context.begin(); }
    auto format(const speedrun::Scheduled<T>& value, fmt::format_context& context) const {
        const std::string text = fmt::format("{}", static_cast<T>(value));
        return std::copy(text.begin(), text.end(), context.out());
    }
};
