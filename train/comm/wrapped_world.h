// A world that forwards all calls but connect() to another one.
#pragma once

#include "train/comm/communicator.h"

namespace speedrun {

class WrappedWorld : public World {
  public:
    explicit WrappedWorld(World& inner) : inner_(inner) {}

    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    int local_rank() const override { return inner_.local_rank(); }
    int local_size() const override { return inner_.local_size(); }
    std::vector<std::string> all_gather(const std::string& text) override { return inner_.all_gather(text); }
    std::vector<std::string> gather(const std::string& text) override { return inner_.gather(text); }
    void abort(ExitCode code, const std::string& reason) override { inner_.abort(code, reason); }
    void finish() override { inner_.finish(); }

  protected:
    World& inner_;  // outlives this
};

}  // namespace speedrun
