// Collects all problems with the tensors of a file into one message.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

class ProblemList {
  public:
    explicit ProblemList(int64_t most = 50) : most_(most) {}  // a file may have a million tensors
    void add(const std::string& problem) {
        if (++count_ > most_) return;
        text_ += (text_.empty() ? "" : "; ") + problem;
        listed_ = count_;
    }
    bool any() const { return count_ > 0; }
    std::string text() const {
        return count_ == listed_ ? text_ : text_ + "; and " + std::to_string(count_ - listed_) + " more";
    }

  private:
    const int64_t most_;
    std::string text_;
    int64_t count_ = 0, listed_ = 0;
};

}  // namespace speedrun
