// `speedrun records export`: the runs of a record in the formats of others.
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
// Writes OUT/<side>/result_N.txt for each run, in the order in which they were made. Throws a usage error for a file that is
// there, and a data error for a record or metrics that are damaged; both before anything is written.
int run_record_export(const RecordExportOptions& options);

}  // namespace speedrun
