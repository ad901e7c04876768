// Records in words: the README of a record's folder.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// Under this heading stands everything of the README that is a figure; verify compares the numbers.
inline constexpr const char* kFiguresHeading = "## Figures";
std::string figures_markdown(const Record& record);
std::string record_readme(const Record& record);

// "2 cores of AMD EPYC", "8 x NVIDIA H100".
std::string hardware_text(const Record& record);
// "44.51 ± 0.32" of milliseconds, as seconds.
std::string seconds_text(const Moments& ms);
std::string loss_text(const Moments& loss);
// "0.0012"; "-" without a test.
std::string p_text(const std::optional<TestResult>& test);

// "0.0123 below modern", or above: the mean loss. For a record with runs of a baseline.
std::string gain_text(const Record& record);

// A line of a table in Markdown, and its first two.
std::string table_row(const std::vector<std::string>& cells);
std::string table_head(const std::vector<std::string>& cells);

}  // namespace speedrun
