// Options of `speedrun sample`.
#pragma once

#include "train/commands/commands.h"

namespace CLI {
class App;
}

namespace speedrun {

// Declares the options; they must outlive the app's parsing.
void add_sample_options(CLI::App& sample, SampleOptions& options);

}  // namespace speedrun
