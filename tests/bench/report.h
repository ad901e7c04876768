// Output of results: JSON lines, appended immediately so that a killed run keeps its results, and a table on
// stdout.
#pragma once

#include <string>

#include "tests/bench/peaks.h"
#include "tests/bench/run_case.h"

namespace speedrun::bench {

class Report {
  public:
    // path: file of the JSON lines, which are appended; empty: none. Throws a data error if it cannot be
    // written.
    Report(std::string path, std::string scale, DType compute_dtype, CudaLibraries libraries);

    void header(const Backend& backend, const BackendPeaks& peaks, const std::string& warning);
    void result(const Case& c, const Measurement& measurement, const Peaks& peaks);

  private:
    void append(const std::string& line);

    const std::string path_, scale_;
    const DType compute_dtype_;
    const CudaLibraries libraries_;
};

}  // namespace speedrun::bench
