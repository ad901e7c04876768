// A config and one --set, after the last newline. An accepted config must be a fixed point of writing and reading.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/config/config_json.h"

void speedrun::fuzz::parse(std::string_view input) {
    const size_t newline = input.rfind('\n');
    std::vector<std::string> settings;
    if (newline != std::string::npos && newline + 1 < input.size())
        settings.emplace_back(input.substr(newline + 1));
    const Config config = parse_config(std::string(input.substr(0, newline)), "fuzz", settings);
    const std::string resolved = config_to_json(config);
    if (config_to_json(parse_config(resolved, "resolved", {})) != resolved) std::abort();
}
