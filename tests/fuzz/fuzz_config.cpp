// A config and one --set, after the last newline. An accepted config must be a fixed point of writing and reading.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/config/config_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string input(reinterpret_cast<const char*>(data), size);
    const size_t newline = input.rfind('\n');
    std::vector<std::string> settings;
    if (newline != std::string::npos && newline + 1 < size) settings.push_back(input.substr(newline + 1));
    speedrun::fuzz::expect_clean([&] {
        const speedrun::Config config = speedrun::parse_config(input.substr(0, newline), "fuzz", settings);
        const std::string resolved = config_to_json(config);
        if (config_to_json(speedrun::parse_config(resolved, "resolved", {})) != resolved) std::abort();
    });
    return 0;
}
