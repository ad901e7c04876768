// Where a launched run's ranks go: to the hosts that answer, as many as there is room for and the config takes.
#pragma once

#include <string>
#include <vector>

#include "train/commands/host_list.h"
#include "train/config/config.h"

namespace speedrun {

// The words of a command that ranks can be placed with: {ranks} their number, {hosts} "a:8,b:8", {names} "a,b", {nodes}
// the number of hosts.
struct LaunchPlaces {
    int ranks = 0;  // 0: nowhere
    std::vector<LaunchHost> hosts;
    std::vector<std::string> fill(std::vector<std::string> words) const;
    std::string text() const;  // "8 ranks on a:8"
};

// What the words behind `train` say to train.
struct TrainedConfig {
    std::string path;
    std::vector<std::string> settings;
};
// words[train] is "train". Throws a usage error if there is no config.
TrainedConfig trained_config(const std::vector<std::string>& words, size_t train);

// Asks every host (`probe` is a shell command, with {host} for its name, that ends with 0 where the host answers) and takes as many
// ranks as the config may have on those that do. `said`: what is to be told of those that do not.
LaunchPlaces place(const std::vector<LaunchHost>& hosts, const std::string& probe, const Config& config,
                   std::vector<std::string>& said);

}  // namespace speedrun
