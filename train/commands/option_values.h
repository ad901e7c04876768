// CLI11 2.1 uses the next argument as the value of "--name=", and any argument as the value of "--name".
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace speedrun {

// Usage error for an option of a subcommand without a value: "--name=", "--name ''", "--name --quiet". Arguments after "--" are
// not checked.
void expect_values(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace speedrun
