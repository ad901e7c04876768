// Text of records: the README of a record's folder.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// All values of the README are below this heading; verify compares them.
inline constexpr const char* kFiguresHeading = "## Figures";
std::string figures_markdown(const Record& record);
std::string record_readme(const Record& record);

// "2 cores of AMD EPYC", "8 x NVIDIA H100".
std::string hardware_text(const Record& record);
// Formats milliseconds as seconds: "44.51 ± 0.32".
std::string seconds_text(const Moments& ms);
std::string loss_text(const Moments& loss);
// "0.0012"; "-" without a test.
std::string p_text(const std::optional<TestResult>& test);

// "0.0123 below modern", or above: difference of mean losses. For a record with baseline runs.
std::string gain_text(const Record& record);

// A line of a Markdown table, and its first two lines.
std::string table_row(const std::vector<std::string>& cells);
std::string table_head(const std::vector<std::string>& cells);

}  // namespace speedrun
