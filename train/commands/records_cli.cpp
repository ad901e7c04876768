#include "train/commands/records_cli.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "train/records/kneser_ney.h"

namespace speedrun {

namespace {

constexpr const char* kAttemptFooter =
    "Runs alternate: candidate, baseline, baseline, candidate, ...; both sides have the same seeds. The same "
    "command\n"
    "continues an attempt that was stopped: finished runs are kept, an unfinished one is made afresh and "
    "listed.\n"
    "Example:\n"
    "  speedrun records attempt configs/kjv_muon.json --runs 5 --against configs/kjv_baseline.json \\\n"
    "      --name muon --baseline-name adamw --what \"Muon for the matrices\"\n"
    "Exit codes: 0 the attempt is finished, a record or not; 2 bad usage; 3 data missing or not the "
    "track's;\n"
    "            5 a rank was lost; 130/143/138 stopped by a signal. A run that diverges is kept and counts "
    "as failed.";

constexpr const char* kCountsFooter =
    "One thread. Reading and hashing the shards is not timed.\n"
    "Example, for the boards of this machine's class of hardware:\n"
    "  speedrun records counts records/kjv --out records/kjv/references/counts_avx512_bf16.json\n"
    "Exit codes: 0 done; 2 bad usage; 3 shards are missing or not the track's.";

void add_settings(CLI::App* command, const char* name, std::vector<std::string>& settings, const char* of) {
    command
        ->add_option(name, settings, fmt::format("override one key of {}: dotted.key=value; repeatable", of))
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);  // one value per flag: later arguments are not settings
}

}  // namespace

RecordsCli::RecordsCli(CLI::App& app) {
    records_ = app.add_subcommand("records", "make, list, compare and verify records of a track");
    records_->require_subcommand(1);

    attempt_ = records_->add_subcommand(
        "attempt", "all runs of a record, alternating with a baseline, and their statistics");
    attempt_
        ->add_option("config", attempt_options_.config,
                     "JSON config, or a record's folder for its config; record.track names the track")
        ->required();
    add_settings(attempt_, "--set", attempt_options_.settings, "the config");
    attempt_->add_option("--runs", attempt_options_.runs, "number of runs, each with its own seed")
        ->check(CLI::Range(1, 1000));
    attempt_->add_option("--first-seed", attempt_options_.first_seed, "first of consecutive seeds")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    attempt_->add_option("--seeds", attempt_options_.seeds, "or these, each once: 1,2,3")
        ->delimiter(',')
        ->check(CLI::NonNegativeNumber);
    attempt_->add_option(
        "--effect", attempt_options_.effect,
        "instead of --runs: the number that detects a time difference of this size, such as 1%, with "
        "power 0.8, from the spread of the runs of --against");
    attempt_->add_option("--against", attempt_options_.against,
                         "baseline, runs alternate with it: a record's folder, or a config");
    add_settings(attempt_, "--against-set", attempt_options_.against_settings, "the baseline's config");
    attempt_->add_option("--name", attempt_options_.name,
                         "name of the record and of the attempt's folder; default: the config's");
    attempt_->add_option("--class", attempt_options_.track_class,
                         "class of the track; its leading record must be beaten; default: the first");
    attempt_->add_option("--what", attempt_options_.what,
                         "the change and why it is faster, for the record's README");
    attempt_->add_option("--baseline-name", attempt_options_.baseline_name,
                         "the baseline has no record yet: write one of its runs, under this name");
    attempt_->add_option("--baseline-what", attempt_options_.baseline_what, "text for that record's README");
    attempt_->add_flag(
        "--systems-only", attempt_options_.systems_only,
        "the change does not affect the maths: the loss must equal the baseline's, instead of a "
        "p-value below the target");
    attempt_->add_option(
        "--baseline-binary", attempt_options_.baseline_binary,
        "another build of speedrun, alternating with this one: both train CONFIG, systems-only");
    attempt_->add_flag("--alone", attempt_options_.alone,
                       "make the runs on one rank, although a launcher started more processes");
    attempt_->add_option("--out", attempt_options_.out, "folder of tracks")->capture_default_str();
    attempt_->add_option("--work", attempt_options_.work, "folder of attempts; run folders go to WORK/NAME/")
        ->capture_default_str();
    attempt_->footer(kAttemptFooter);

    list_ = records_->add_subcommand(
        "list", "a leaderboard for each class, and in it each class of hardware, by mean training time");
    list_->add_option("track", list_options_.folder, "track, or folder of tracks")->capture_default_str();
    list_->add_flag("--json", list_options_.json, "as JSON");
    list_->add_flag("--markdown", list_options_.markdown, "as a table for a README");

    compare_ = records_->add_subcommand(
        "compare", "two records, or two sets of run folders: means, ratio, Welch's test");
    compare_->add_option("a", compare_options_.a, "record's folder, or run folders: comma-separated patterns")
        ->required();
    compare_->add_option("b", compare_options_.b, "as A, to compare with")->required();
    compare_->add_flag("--json", compare_options_.json, "as JSON");

    verify_ = records_->add_subcommand(
        "verify", "compute every figure again from the runs' metrics, and the losses of references");
    verify_->add_option("folders", verify_options_.folders, "records, tracks; default: all in records/");
    verify_->add_flag("--json", verify_options_.json, "as JSON");
    verify_->add_flag("--strict", verify_options_.strict,
                      "requirements on new records: all rules met, seeds 1 to n, the wall clock and the "
                      "machine of each run");
    verify_->footer(
        "Exit codes: 0 every figure is that of the runs; 3 not: each such figure is named, with both "
        "values.");

    export_ = add_record_export(*records_, export_options_);
    trial_ = add_record_trial(*records_, trial_options_);
    counts_ = records_->add_subcommand(
        "counts",
        "the loss and time of counted contexts (interpolated modified Kneser-Ney), without training");
    counts_->add_option("track", counts_options_.track, "track with the shards to count and score")
        ->capture_default_str();
    auto* order = counts_->add_option("--order", counts_options_.order, "tokens of context")
                      ->check(CLI::Range(1, kMaxContextTokens))
                      ->capture_default_str();
    counts_->add_option("--orders", counts_options_.orders, "or several, each with a line of its own: 4,5,6")
        ->delimiter(',')
        ->check(CLI::Range(1, kMaxContextTokens))
        ->excludes(order);
    counts_
        ->add_option("--row-length", counts_options_.row_length,
                     "tokens of a scored row, which sees nothing before its own start")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    counts_->add_option("--data", counts_options_.data,
                        "folder of the shards; default: where the track's data is prepared");
    counts_->add_option("--out", counts_options_.out,
                        "write a reference, which boards show: the median time of 5 repetitions");
    counts_->footer(kCountsFooter);
    rerun_ = records_->add_subcommand("rerun", "repeat a record's runs with other seeds, and judge them");
    rerun_->add_option("record", rerun_options_.record, "the record's folder")->required();
    rerun_->add_option("--runs", rerun_options_.runs, "number of runs of each side; default: the record's")
        ->check(CLI::Range(2, 1000));
    rerun_->add_option(
        "--binary", rerun_options_.binary,
        "speedrun of the record's commit; default: this one if it is, else built in build/rerun");
    rerun_->add_option("--baseline-binary", rerun_options_.baseline_binary,
                       "speedrun of the baseline's commit, for a race of two builds");
    rerun_->add_option("--out", rerun_options_.out, "folder of the result; default: RECORD/replications");
    rerun_->add_option("--work", rerun_options_.work, "folder of run folders: WORK/<record>/")
        ->capture_default_str();
    rerun_->footer(
        "Verdict: replicated; not replicated, with reasons; other hardware or busy machine: losses judged, times "
        "not.\nThe same command continues after an interruption. "
        "Exit codes: 0 replicated, or times not judged; 2 bad usage; 3 not replicated, or data missing;\n"
        "            130/143 stopped by a signal.");
}

bool RecordsCli::chosen() const {
    return records_->parsed();
}

int RecordsCli::run() const {
    if (attempt_->parsed()) return run_record_attempt(attempt_options_);
    if (list_->parsed()) return run_record_list(list_options_);
    if (counts_->parsed()) return run_record_counts(counts_options_);
    if (compare_->parsed()) return run_record_compare(compare_options_);
    if (export_->parsed()) return run_record_export(export_options_);
    if (trial_->parsed()) return run_record_trial(trial_options_);
    if (rerun_->parsed()) return run_record_rerun(rerun_options_);
    return run_record_verify(verify_options_);
}

}  // namespace speedrun
