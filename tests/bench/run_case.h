// Prepares one case, times it, checks what it wrote, and compares it with its floor.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/ops/ceilings.h"
#include "kernels/ops/metered_ops.h"
#include "tests/bench/backend.h"
#include "tests/bench/cases.h"
#include "tests/bench/timing.h"

namespace speedrun::bench {

// A case's call on several sets of tensors, in rotation, so that no call finds its inputs in the cache.
// Throws what preparing it throws, and an internal error for a case that runs another operation or more than
// one.
class PreparedCase {
  public:
    PreparedCase(const Case& c, Backend& backend, Stream& stream, DType real);

    const std::vector<std::function<void()>>& calls() const { return calls_; }
    int sets() const { return static_cast<int>(sets_.size()); }
    // Cost of one call: the least that it moves, as the tensors were handed out, and as MeteredOps tells it.
    int64_t bytes() const { return sets_.front()->bytes(); }
    int64_t bytes_written() const { return sets_.front()->bytes_written(); }
    const OpCost& cost() const { return cost_; }
    // After all calls have run at least once: throws unless every output was written and is finite.
    void check_outputs();

  private:
    Backend& backend_;
    Stream& stream_;
    std::vector<std::unique_ptr<CaseMemory>> sets_;
    std::vector<std::function<void()>> calls_;
    OpCost cost_;
};

struct Measurement {
    Timing timing;
    int sets = 0;         // of tensors, in rotation
    int64_t bytes = 0;    // least moved by one call
    std::string failure;  // empty: all outputs were written and are finite
};

// A failure of the operation (thrown, or unwritten or non-finite outputs) is an answer, not an exception.
Measurement run_case(const Case& c, Backend& backend, Stream& stream, Timer& timer, DType real,
                     const TimingOptions& options);

// Members of all_operations() that are not in `timed`.
std::vector<std::string> operations_without_case(const std::set<std::string>& timed);

// Milliseconds that the expectation means for this case.
double expected_ms(const Published& published, double flops, const Floor& floor);

}  // namespace speedrun::bench
