// Lines that a reader skipped because they are not JSON, as after a full disk or a killed process.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

struct DamagedLines {
    int64_t count = 0, first = 0;  // first: line number in the file, from 1

    void add(int64_t number) {
        if (count++ == 0) first = number;
    }
    bool any() const { return count > 0; }
    std::string text() const {
        if (count == 1) return "line " + std::to_string(first) + " is damaged and left out";
        return std::to_string(count) + " damaged lines left out, the first is line " + std::to_string(first);
    }
};

}  // namespace speedrun
