// The flags of `speedrun prepare`.
#pragma once

#include "data/prepare.h"

namespace CLI {
class App;
}

namespace speedrun {

// Declares the subcommand. The options must outlive the app's parsing.
CLI::App* add_prepare(CLI::App& app, PrepareOptions& options);

}  // namespace speedrun
