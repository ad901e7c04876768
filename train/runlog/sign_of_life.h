// Shows that a long phase without output, such as validation, is alive: `launch --stalled` checks the files' times.
#pragma once

#include <chrono>
#include <string>

namespace speedrun {

class SignOfLife {
  public:
    explicit SignOfLife(const std::string& folder) : log_(folder + "/run.log") {}

    // Sets the modification time of run.log to now, at most once a second.
    void show();

  private:
    const std::string log_;
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace speedrun
