// `speedrun records export`: the runs of a record in other programs' formats.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace speedrun {

struct RecordExportOptions {
    bool mlperf = false;
    std::string record;  // folder
    std::string out;     // folder to write; empty: logs/mlperf/<the record's folder>
    std::string organisation = "unnamed";
};

// Declares `export` in the app of `speedrun records`; the options must outlive the app's parsing.
CLI::App* add_record_export(CLI::App& records, RecordExportOptions& options);
// Writes OUT/<side>/result_N.txt for each run, in the order of the runs. Throws a usage error for an existing file, and a data
// error for a damaged record or metrics; both before any file is written.
int run_record_export(const RecordExportOptions& options);

}  // namespace speedrun
