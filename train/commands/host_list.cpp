#include "train/commands/host_list.h"

#include <fstream>
#include <sstream>

#include "kernels/device/error.h"

namespace speedrun {

std::vector<LaunchHost> read_launch_hosts(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw_usage("--hosts {}: cannot be opened", path);
    std::vector<LaunchHost> hosts;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        std::istringstream words(line.substr(0, line.find('#')));
        LaunchHost host;
        if (!(words >> host.name)) continue;
        for (std::string word; words >> word;) {
            constexpr int kMostDigits = 6;
            const std::string key = "slots=", digits = word.starts_with(key) ? word.substr(key.size()) : "";
            if (digits.empty() || digits.size() > kMostDigits ||
                digits.find_first_not_of("0123456789") != std::string::npos || std::stoi(digits) == 0)
                throw_usage("{}: line {}: expected 'NAME slots=N', found '{}'", path, number, line);
            host.slots = std::stoi(digits);
        }
        hosts.push_back(host);
    }
    if (hosts.empty()) throw_usage("--hosts {}: names no host", path);
    return hosts;
}

}  // namespace speedrun
