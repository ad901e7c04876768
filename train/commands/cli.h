// The command line: flags and help of every subcommand, declared once.
#pragma once

namespace speedrun {

// Parses the command line, runs the subcommand and returns its exit code; 2 for bad usage, with a message. Throws the command's
// errors.
int run_command_line(int argc, char** argv);

}  // namespace speedrun
