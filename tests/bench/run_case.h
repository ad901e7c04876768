// Prepares one case, times it, checks its outputs, and compares it with its roofline bound.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/ops/metered_ops.h"
#include "kernels/ops/peaks.h"
#include "tests/bench/backend.h"
#include "tests/bench/cases.h"
#include "tests/bench/timing.h"

namespace speedrun::bench {

// Calls of a case on several sets of tensors, in rotation, so that no call finds its inputs in the cache.
// Throws the exceptions of its preparation, and an internal error for a case that runs another operation or
// more than one.
class PreparedCase {
  public:
    PreparedCase(const Case& c, Backend& backend, Stream& stream, DType compute_dtype);

    const std::vector<std::function<void()>>& calls() const { return calls_; }
    int sets() const { return static_cast<int>(sets_.size()); }
    // Cost of one call: its minimum bytes by the case's tensors, and by MeteredOps.
    int64_t bytes() const { return sets_.front()->counted().bytes(); }
    int64_t bytes_written() const { return sets_.front()->counted().written; }
    const OpCost& cost() const { return cost_; }
    // Call after all calls have run at least once: throws unless every output is written and finite.
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
    int sets = 0;         // sets of tensors, in rotation
    int64_t bytes = 0;    // minimum bytes of one call
    std::string failure;  // empty: all outputs were written and are finite
};

// A failure of the operation (exception, or unwritten or non-finite outputs) is a result, not an exception.
Measurement run_case(const Case& c, Backend& backend, Stream& stream, Timer& timer, DType compute_dtype,
                     const TimingOptions& options);

// Members of all_operations() that are not in `timed`.
std::vector<std::string> operations_without_case(const std::set<std::string>& timed);

// Published figure in milliseconds for this case.
double expected_ms(const Published& published, double flops, const RooflineBound& bound);

}  // namespace speedrun::bench
