// Collects all problems with the tensors of a file into one message.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

class ProblemList {
  public:
    void add(const std::string& problem) {
        constexpr int64_t kMax = 50;  // a file may have a million tensors
        if (++count_ > kMax) return;
        text_ += (text_.empty() ? "" : "; ") + problem;
        listed_ = count_;
    }
    bool any() const { return count_ > 0; }
    std::string text() const {
        return count_ == listed_ ? text_ : text_ + "; and " + std::to_string(count_ - listed_) + " more";
    }

  private:
    std::string text_;
    int64_t count_ = 0, listed_ = 0;
};

}  // namespace speedrun
