// README.md of an exported model.
#pragma once

#include <cstdint>
#include <string>

#include "train/commands/finished_run.h"

namespace speedrun {

struct ModelCard {
    std::string title;
    std::string architecture;  // "GPT-2", or with own code: "speedrun"
    bool has_code = false;     // needs trust_remote_code
    std::string tokens;        // "857 tokens of a byte-level BPE"; empty: without tokenizer
    std::string dataset;       // empty: unknown
};

// Returns the card, with steps and validation loss of summary.json, if the run has one.
std::string model_card(const FinishedRun& run, const ModelCard& card);

}  // namespace speedrun
