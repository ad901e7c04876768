// Passes every operation on to another Ops and notes its name: the proof that a case runs the operation that
// it claims to time, and that no operation of kernels/ops.h is without a case.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/bench/op_list.h"

namespace speedrun::bench {

class RecordingOps final : public Ops {
  public:
    explicit RecordingOps(Ops& ops) : ops_(ops) {}

#define SPEEDRUN_RECORD(name, parameters, arguments) \
    void name parameters override {                  \
        called_.insert(#name);                       \
        ops_.name arguments;                         \
    }
    SPEEDRUN_EACH_OP(SPEEDRUN_RECORD)
#undef SPEEDRUN_RECORD

    int64_t flops() const override {
        return ops_.flops();
    }

    const std::set<std::string>& called() const {
        return called_;
    }
    void forget() {
        called_.clear();
    }

  private:
    Ops& ops_;
    std::set<std::string> called_;
};

// The names of all operations, in the order of kernels/ops.h.
inline std::vector<std::string> all_operations() {
#define SPEEDRUN_NAME(name, parameters, arguments) #name,
    return {SPEEDRUN_EACH_OP(SPEEDRUN_NAME)};
#undef SPEEDRUN_NAME
}

// Those that are not in `timed`.
inline std::vector<std::string> operations_without_case(const std::set<std::string>& timed) {
    std::vector<std::string> missing;
    for (const std::string& name : all_operations()) {
        if (timed.count(name) == 0) missing.push_back(name);
    }
    return missing;
}

}  // namespace speedrun::bench
