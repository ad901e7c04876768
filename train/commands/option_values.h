// CLI11 2.1 takes the next argument for the value of "--name=", and any argument for that of "--name".
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace speedrun {

// Usage error for an option of a subcommand without a value: "--name=", "--name ''", "--name --quiet". Arguments after "--" are
// not looked at.
void expect_values(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace speedrun
