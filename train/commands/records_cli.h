// The flags of `speedrun records` and its subcommands.
#pragma once

#include "train/commands/commands.h"
#include "train/commands/records_export.h"
#include "train/commands/records_trial.h"

namespace CLI {
class App;
}

namespace speedrun {

class RecordsCli {
  public:
    explicit RecordsCli(CLI::App& app);  // declares the flags; the object must outlive the app's parsing
    RecordsCli(const RecordsCli&) = delete;
    RecordsCli& operator=(const RecordsCli&) = delete;

    bool chosen() const;
    int run() const;

  private:
    CLI::App *records_, *attempt_, *list_, *compare_, *verify_, *counts_, *rerun_;
    RecordAttemptOptions attempt_options_;
    RecordListOptions list_options_;
    RecordCompareOptions compare_options_;
    RecordVerifyOptions verify_options_;
    CLI::App *export_, *trial_;
    RecordTrialOptions trial_options_;
    RecordExportOptions export_options_;
    RecordCountsOptions counts_options_;
    RecordRerunOptions rerun_options_;
};

}  // namespace speedrun
