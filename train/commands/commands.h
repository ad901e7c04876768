// The subcommands of the binary: their options (bound to flags in cli.cpp) and functions. Each returns the process's exit code
// and throws Error for errors that the user can fix.
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
    std::string name;                   // empty: config name and time
    std::string out = "logs";
    std::optional<int64_t> seed;
    std::string resume;                // "auto", a checkpoint, a run's folder; empty: a new run
    std::optional<int64_t> extend_to;  // steps of the longer run; requires resume
    std::string trace;                 // "FIRST:LAST" or empty
    bool quiet = false;
    bool alone = false;  // one rank, under any launcher
    // Settings for several runs in one process.
    bool print_result = true;
    double began_ms = 0;  // as in TrainerOptions
};
int run_train(const TrainOptions& options);

struct PlanOptions {
    std::string config;
    std::vector<std::string> settings;
    bool options_help = false;     // list every option and exit
    std::string option_pages;      // folder: write the reference of options, a page per section, and exit
    bool schema = false;           // print the JSON Schema of configs and exit
    bool metrics = false;          // print the declarations of metrics and exit
    bool parameters = false;       // list the model's parameters and exit
    int ranks = 0;                 // number of ranks; 0: the launcher's, else 1
    std::string gpu;               // model a step on this GPU (kernels/ops/gpu_models.h)
    bool json = false;             // with gpu or parameters
    std::string measured;          // report of a check on a GPU; replaces the built-in rates
    bool timeline = false;         // with gpu: the step in time, with communication
    bool search = false;           // with gpu: search for fast layouts
    std::string network;           // JSON (train/timeline/network.h); empty: the default
    std::string trace;             // with timeline: output file
    std::string graph;             // write a unit of the model to this file: .dot or .gv
    std::optional<int64_t> stage;  // stage for gpu, graph and the table of layers; default: last
    std::optional<int> unit;       // with graph; default: the middle one of those with the most nodes
};
int run_plan(const PlanOptions& options);

struct BenchOptions {
    std::string config;
    std::vector<std::string> settings;
    std::optional<int64_t> threads;  // overrides the config's
    std::optional<int64_t> stage;    // default: last
    int64_t steps = 10, warmup = 3;
    std::optional<double> run_seconds;  // predict the time of the whole run from this many seconds of steps
    bool json = false;
    bool alone = false;  // as in TrainOptions
};
int run_bench(const BenchOptions& options);

struct LaunchOptions {
    std::vector<std::string> command;  // starts `speedrun train`
    int64_t max_restarts = 3;
    double backoff_s = 1;     // delay before the first restart; doubled for each further one
    double stalled_s = 1800;  // time without a sign of life after which the command is killed
    std::string hosts;        // file with the host list; empty: the command places its ranks itself
    std::string probe = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true";
};
// Runs the command, and restarts it when it crashes. Returns its last exit code.
int run_launch(const LaunchOptions& options);

struct EvalOptions {
    std::string run;  // run folder, a checkpoint in it, or a config
    std::vector<std::string> settings;
    std::string text;             // file to evaluate instead of the validation shards
    std::string json_key;         // DocumentFormat::json_key for `text`
    std::string multiple_choice;  // items to score instead
    std::string vocabulary;       // with these: SampleOptions::vocabulary
    bool json = false;
};
int run_eval(const EvalOptions& options);

struct SampleOptions {
    std::string run;
    std::vector<std::string> settings;
    std::string prompt;
    bool interactive = false;  // prompts are the lines of stdin
    std::string vocabulary;    // tokenizer file; empty: the run's
    int64_t tokens = 300;
    int64_t samples = 1;  // texts per prompt
    double temperature = 0.8;
    int64_t top_k = 0;  // 0: all tokens
    double top_p = 1;
    int64_t seed = 1;
};
int run_sample(const SampleOptions& options);

struct GradientsOptions {
    std::string config;
    std::vector<std::string> settings;
    std::string weights, tokens;       // safetensors; 16-bit tokens or a shard
    std::string out;                   // safetensors to write
    int64_t length = 0;                // tokens of the row without the last target; 0: whole file
    std::optional<int64_t> separator;  // first token of documents; default: the config's data
    std::optional<int64_t> stage;      // default: last
};
int run_gradients(const GradientsOptions& options);

struct TraceOptions {
    std::string file;  // trace.json, or its run folder
    int rank = 0;
    std::optional<int64_t> step;  // a traced step; default: all
    int top = 0;                  // number of buckets; 0: all
    bool json = false;
    std::string svg, title;  // picture to write, and its title
};
int run_trace(const TraceOptions& options);

int run_prepare(const PrepareOptions& options);

struct ImportOptions {
    std::string folder;                 // in the transformers library's layout
    std::vector<std::string> settings;  // override the config of the model
    std::string name;                   // run folder; empty: the folder's name
    std::string out = "logs";
};
int run_import(const ImportOptions& options);

struct ExportOptions {
    std::string run;
    std::string folder;  // new folder
    std::string dtype = "f32";
    std::string vocabulary;  // SampleOptions::vocabulary
};
int run_export(const ExportOptions& options);

struct DoctorOptions {
    std::string out = "logs";  // output folder of runs
    bool json = false;
};
int run_doctor(const DoctorOptions& options);

struct RecordAttemptOptions {
    std::string config;
    std::vector<std::string> settings;
    int64_t runs = 0;     // 0: number of seeds
    std::string against;  // a record's folder, or a config; empty: none
    std::vector<std::string> against_settings;
    std::string name;         // empty: the config's
    std::string track_class;  // empty: the track's first class
    int64_t first_seed = 1;
    std::vector<int64_t> seeds;  // replaces runs and first_seed
    std::string effect;          // replaces runs: "1%", the time difference to detect
    std::string out = "records", work = "logs/attempts";
    std::string what;
    std::string baseline_name, baseline_what;  // write a record of the baseline too
    bool systems_only = false;
    bool alone = false;  // as in TrainOptions
    std::string
        baseline_binary;  // another build of the engine: both train the config, each run in its own process
};
int run_record_attempt(const RecordAttemptOptions& options);

struct RecordListOptions {
    std::string folder = "records";  // folder of tracks, one track's folder, or a track's name
    bool json = false, markdown = false;
};
int run_record_list(const RecordListOptions& options);

struct RecordCountsOptions {
    std::string track = "records/kjv";  // folder or name
    int order = 5;
    std::vector<int> orders;  // replaces order
    int64_t row_length = 256;
    std::string data;  // folder of the shards; empty: the default folder of the track's data
    std::string out;   // output file of the reference
};
int run_record_counts(const RecordCountsOptions& options);

struct RecordCompareOptions {
    std::string a, b;  // records' folders; or run folders as comma-separated patterns
    bool json = false;
};
int run_record_compare(const RecordCompareOptions& options);

struct RecordVerifyOptions {
    std::vector<std::string> folders;  // records or tracks; empty: all in records/
    bool json = false;
    bool strict = false;  // apply the rules for new records
};
int run_record_verify(const RecordVerifyOptions& options);

struct RecordRerunOptions {
    std::string record;           // folder
    int64_t runs = 0;             // runs per side; 0: as in the record
    std::string binary;           // program of the record's commit; empty: this program, or one that is built
    std::string baseline_binary;  // program of the other side in a race of two builds
    std::string out;              // folder of the result; empty: RECORD/replications
    std::string work = "logs/reruns";
};
int run_record_rerun(const RecordRerunOptions& options);

}  // namespace speedrun
