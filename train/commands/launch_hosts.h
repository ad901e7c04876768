// Places a launched run's ranks on the hosts that answer, within their slots and the config's possible numbers of ranks.
#pragma once

#include <string>
#include <vector>

#include "train/commands/host_list.h"
#include "train/config/config.h"

namespace speedrun {

// Placeholders of a command: {ranks} the number of ranks, {hosts} "a:8,b:8", {names} "a,b", {nodes} the number of hosts.
struct LaunchPlaces {
    int ranks = 0;  // 0: no placement possible
    std::vector<LaunchHost> hosts;
    std::vector<std::string> fill(std::vector<std::string> words) const;
    std::string text() const;  // "8 ranks on a:8"
};

// The config of a `train` command.
struct TrainedConfig {
    std::string path;
    std::vector<std::string> settings;
};
// words[train] is "train". Throws a usage error if no config follows.
TrainedConfig trained_config(const std::vector<std::string>& words, size_t train);

// Probes every host and places the largest possible number of ranks on those that answer. `probe` is a shell command with
// {host} for the name; exit code 0 means that the host answers. `said` receives messages about hosts without an answer.
LaunchPlaces place(const std::vector<LaunchHost>& hosts, const std::string& probe, const Config& config,
                   std::vector<std::string>& said);

}  // namespace speedrun
