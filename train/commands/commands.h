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
    std::string trace;  // "FIRST:LAST" or empty
    bool quiet = false;
};
int run_train(const TrainOptions& options);

struct PlanOptions {
    std::string config;
    std::vector<std::string> settings;
    bool options_help = false;  // list every option instead
    int ranks = 0;              // to plan for; 0: those that a launcher started, else 1
};
int run_plan(const PlanOptions& options);

struct EvalOptions {
    std::string run;  // run folder
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

int run_doctor();

}  // namespace speedrun
