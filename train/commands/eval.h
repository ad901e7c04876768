// Parts of `speedrun eval`.
#pragma once

#include <cstdint>

#include "train/commands/commands.h"

namespace CLI {
class App;
}

namespace speedrun {

// Declares the options of `speedrun eval`; they must outlive the app's parsing.
void add_eval_options(CLI::App& eval, EvalOptions& options);

int run_multiple_choice(const EvalOptions& options);

// Loss of the documents of a text.
struct TextLoss {
    double sum = 0;      // nats
    int64_t tokens = 0;  // targets, the separators of documents excluded
    int64_t bytes = 0;   // size of the decoded text

    double mean() const { return sum / static_cast<double>(tokens); }  // nats per token
    double perplexity() const;
    double bits_per_byte() const;
};
int run_text_loss(const EvalOptions& options);

}  // namespace speedrun
