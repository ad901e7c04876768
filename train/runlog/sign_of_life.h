// Work of a run that writes nothing for long, such as validation, shows that it goes on: `launch --stalled` looks at the files.
#pragma once

#include <chrono>
#include <string>

namespace speedrun {

class SignOfLife {
  public:
    explicit SignOfLife(const std::string& folder) : log_(folder + "/run.log") {}

    // Sets the time of run.log to now, once a second at most.
    void show();

  private:
    const std::string log_;
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace speedrun
