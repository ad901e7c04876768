// The subcommands of the binary: their options (bound to flags in cli.cpp) and what runs them. Each returns
// the process's exit code and throws Error for what the user can mend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/prepare.h"

namespace speedrun {

struct TrainOptions {
    std::string config;
    std::vector<std::string> settings;  // dotted.key=value
    std::string name;                   // empty: the config's name and the time
    std::string out = "logs";
    std::optional<int64_t> seed;
    std::string resume;  // "auto", a checkpoint, a run's folder; empty: start afresh
    std::string trace;   // "FIRST:LAST" or empty
    bool quiet = false;
    bool alone = false;  // one rank, under any launcher
    // Settings of runs that are not the only one of their process.
    bool print_result = true;
    double began_ms = 0;  // as in TrainerOptions
};
int run_train(const TrainOptions& options);

struct PlanOptions {
    std::string config;
    std::vector<std::string> settings;
    bool options_help = false;     // list every option instead
    bool schema = false;           // print the JSON Schema of configs instead
    bool spell_out = false;        // print the config with its model in parts instead
    bool metrics = false;          // print what is declared of metrics instead
    bool parameters = false;       // list the model's parameters instead
    int ranks = 0;                 // to plan for; 0: those that a launcher started, else 1
    std::string gpu;               // a modelled step on this GPU instead (kernels/ops/gpu_models.h)
    bool json = false;             // of that, or of the parameters
    std::string measured;          // report of a check on a GPU, in place of what is built in
    bool timeline = false;         // with gpu: in time, with what the ranks send each other
    bool search = false;           // with gpu: which layouts of the ranks are fast
    std::string network;           // of these: JSON (train/timeline/network.h); empty: the default
    std::string trace;             // of that: write it there
    std::string graph;             // .dot or .gv file for a unit of the model, in place of the tables
    std::optional<int64_t> stage;  // that --gpu, --graph and the table of layers show; the last one
    std::optional<int> unit;       // of that; the middle one of those with the most nodes
};
int run_plan(const PlanOptions& options);

struct BenchOptions {
    std::string config;
    std::vector<std::string> settings;
    std::optional<int64_t> threads;  // overrides the config's
    std::optional<int64_t> stage;    // the last one
    int64_t steps = 10, warmup = 3;
    std::optional<double>
        run_seconds;  // how long the whole run would take instead, from so many seconds of it
    bool json = false;
    bool alone = false;  // as in TrainOptions
};
int run_bench(const BenchOptions& options);

struct LaunchOptions {
    std::vector<std::string> command;  // that starts `speedrun train`
    int64_t max_restarts = 3;
    double backoff_s = 1;     // before the first restart; twice as long before each further one
    double stalled_s = 1800;  // without a sign of life, after which the command is killed
    std::string hosts;        // file that lists them; empty: the command knows where its ranks go
    std::string probe = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true";
};
// Runs the command, and again when it dies. Its last exit code.
int run_launch(const LaunchOptions& options);

struct EvalOptions {
    std::string run;  // run folder, one of its checkpoints, or a config
    std::vector<std::string> settings;
};
int run_eval(const EvalOptions& options);

struct SampleOptions {
    std::string run;
    std::vector<std::string> settings;
    std::string prompt;
    std::string vocabulary;  // of the tokenizer; empty: the one of the run's data
    int64_t tokens = 300;
    double temperature = 0.8;
    int64_t seed = 1;
};
int run_sample(const SampleOptions& options);

struct GradientsOptions {
    std::string config;
    std::vector<std::string> settings;
    std::string weights, tokens;       // safetensors; 16-bit tokens or a shard
    std::string out;                   // safetensors, to be written
    int64_t length = 0;                // of the row, its targets apart; 0: all of the file
    std::optional<int64_t> separator;  // that documents start with; that of the config's data
    std::optional<int64_t> stage;      // the last one
};
int run_gradients(const GradientsOptions& options);

struct TraceOptions {
    std::string file;  // trace.json, or the run folder that has it
    int rank = 0;
    std::optional<int64_t> step;  // one of those traced; all
    int top = 0;                  // so many buckets only; 0: all
    bool json = false;
    std::string svg, title;  // a picture to write, and what stands above it
};
int run_trace(const TraceOptions& options);

int run_prepare(const PrepareOptions& options);

struct ImportOptions {
    std::string folder;                 // of the transformers library
    std::vector<std::string> settings;  // on top of the config that follows from it
    std::string name;                   // of the run folder; empty: the folder's
    std::string out = "logs";
};
int run_import(const ImportOptions& options);

struct ExportOptions {
    std::string run;
    std::string folder;  // to be made
    std::string dtype = "f32";
};
int run_export(const ExportOptions& options);

struct DoctorOptions {
    std::string out = "logs";  // where runs would be written
    bool json = false;
};
int run_doctor(const DoctorOptions& options);

struct RecordAttemptOptions {
    std::string config;
    std::vector<std::string> settings;
    int64_t runs = 0;     // 0: as many as seeds
    std::string against;  // a record's folder, or a config; empty: nothing
    std::vector<std::string> against_settings;
    std::string name;         // empty: the config's
    std::string track_class;  // empty: the track's first
    int64_t first_seed = 1;
    std::vector<int64_t> seeds;  // instead of runs and first_seed
    std::string effect;          // instead of runs: "1%", the difference of times that is to be shown
    std::string out = "records", work = "logs/attempts";
    std::string what;
    std::string baseline_name, baseline_what;  // write a record of the baseline too
    bool systems_only = false;
    bool alone = false;  // as in TrainOptions
    std::string
        baseline_binary;  // another build of the engine: both train the config, each run in a process of its own
};
int run_record_attempt(const RecordAttemptOptions& options);

struct RecordListOptions {
    std::string folder = "records";  // of tracks, one track's folder, or a track's name
    bool json = false, markdown = false;
};
int run_record_list(const RecordListOptions& options);

struct RecordCountsOptions {
    std::string track = "records/kjv";  // its folder, or its name
    int order = 5;
    std::vector<int> orders;  // in place of order
    int64_t row_length = 256;
    std::string data;  // folder of the shards; empty: the one that the track's data is prepared in
    std::string out;   // file of the reference
};
int run_record_counts(const RecordCountsOptions& options);

struct RecordCompareOptions {
    std::string a, b;  // records' folders; or run folders, comma-separated patterns
    bool json = false;
};
int run_record_compare(const RecordCompareOptions& options);

struct RecordVerifyOptions {
    std::vector<std::string> folders;  // records or tracks; empty: all in records/
    bool json = false;
    bool strict = false;  // as records from now on have to be
};
int run_record_verify(const RecordVerifyOptions& options);

struct RecordRerunOptions {
    std::string record;           // folder
    int64_t runs = 0;             // number of each side; 0: the record's
    std::string binary;           // program of the record's commit; empty: this one, or one that is built
    std::string baseline_binary;  // program of the other side in a race of two builds
    std::string out;              // folder of the result; empty: RECORD/replications
    std::string work = "logs/reruns";
};
int run_record_rerun(const RecordRerunOptions& options);

}  // namespace speedrun
