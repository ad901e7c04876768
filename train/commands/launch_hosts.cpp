#include "train/commands/launch_hosts.h"

#include <fmt/format.h>

#include <numeric>

#include "kernels/device/error.h"
#include "train/commands/program_run.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

void replace_all(std::string& text, const std::string& what, const std::string& by) {
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
        text.replace(at, what.size(), by);
}

// Returns the word quoted for a shell, if needed.
std::string shell_quoted(std::string word) {
    const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-";
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
    replace_all(word, "'", "'\\''");
    return "'" + word + "'";
}

std::string list_of(const std::vector<LaunchHost>& hosts, bool with_slots) {
    std::string list;
    for (const LaunchHost& host : hosts)
        list += (list.empty() ? "" : ",") + host.name +
                (with_slots ? ":" + std::to_string(host.slots) : std::string());
    return list;
}

bool takes(const Config& config, int ranks) {
    try {
        (void)plan_ranks(config, ranks);
        return true;
    } catch (const Error& error) {
        if (error.code() != ExitCode::usage) throw;
        return false;
    }
}

}  // namespace

std::vector<std::string> LaunchPlaces::fill(std::vector<std::string> words) const {
    for (std::string& word : words) {
        replace_all(word, "{ranks}", std::to_string(ranks));
        replace_all(word, "{hosts}", list_of(hosts, true));
        replace_all(word, "{names}", list_of(hosts, false));
        replace_all(word, "{nodes}", std::to_string(hosts.size()));
    }
    return words;
}

std::string LaunchPlaces::text() const {
    return fmt::format("{} rank(s) on {}", ranks, list_of(hosts, true));
}

TrainedConfig trained_config(const std::vector<std::string>& words, size_t train) {
    TrainedConfig trained;
    bool value = false, setting = false;  // the previous word was an option; or --set, which takes several
    for (size_t i = train + 1; i < words.size(); ++i) {
        const std::string& word = words[i];
        const bool option = word.starts_with("-");
        if (word.starts_with("--set=")) {
            trained.settings.push_back(word.substr(word.find('=') + 1));
        } else if (option) {
            setting = word == "--set";
            value = !setting && word != "--quiet" && word.find('=') == std::string::npos;
        } else if (setting && word.find('=') != std::string::npos) {
            trained.settings.push_back(word);
        } else if (value) {
            value = false;
        } else {
            trained.path = word;
        }
    }
    if (trained.path.empty()) throw_usage("launch: no config after 'train'");
    return trained;
}

LaunchPlaces place(const std::vector<LaunchHost>& hosts, const std::string& probe, const Config& config,
                   std::vector<std::string>& said) {
    LaunchPlaces placement;
    constexpr int kNotFound = 127;  // a shell's exit code
    size_t num_not_found = 0;
    for (const LaunchHost& host : hosts) {
        std::string command = probe;
        replace_all(command, "{host}", shell_quoted(host.name));
        const int code = run_program({"sh", "-c", command}, true);
        if (code == 0) {
            placement.hosts.push_back(host);
            continue;
        }
        if (signal_passed_on() != 0) return {};
        if (code == kNotFound) ++num_not_found;
        said.push_back(fmt::format("{} does not answer ('{}' ended with {}{})", host.name, command, code,
                                   code == kNotFound ? ": a program in it is not found" : ""));
    }
    if (num_not_found == hosts.size())
        throw_usage(
            "--probe '{}': a program in it is not found (exit code {} for every host); install it, or give another --probe",
            probe, kNotFound);
    const int room = std::accumulate(placement.hosts.begin(), placement.hosts.end(), 0,
                                     [](int sum, const LaunchHost& host) { return sum + host.slots; });
    placement.ranks = room;
    while (placement.ranks > 0 && !takes(config, placement.ranks)) --placement.ranks;
    if (placement.ranks < room)
        said.push_back(fmt::format("the config takes {} of {} ranks", placement.ranks, room));
    return placement;
}

}  // namespace speedrun
