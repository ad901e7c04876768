// The command line: flags and help of every subcommand, declared once.
#pragma once

namespace speedrun {

// Parses, runs the subcommand and returns its exit code; bad usage is reported and gives 2. Throws what
// commands throw.
int run_command_line(int argc, char** argv);

}  // namespace speedrun
