#include "train/commands/machine_watch.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "train/comm/world.h"

namespace speedrun {

namespace {

std::string name_of_host() {
    std::array<char, 256> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Texts of the ranks on this host, without the host's name in front.
std::vector<std::string> said_on_this_host(World& world, const std::string& text) {
    const std::string host = name_of_host() + '\n';
    std::vector<std::string> said;
    for (const std::string& one : world.all_gather(host + text))
        if (one.starts_with(host)) said.push_back(one.substr(host.size()));
    return said;
}

}  // namespace

MachineWatch::MachineWatch(World& world) : world_(world) {
    for (const std::string& list : said_on_this_host(world, allowed_cores()))
        cores_.merge(cores_in_list(list));
    begin_ = read_machine_counters(cores_);
}

MachineState MachineWatch::end() {
    const MachineCounters now = read_machine_counters(cores_);
    double own_s = 0;
    for (const std::string& text : said_on_this_host(world_, fmt::format("{:.9f}", now.own_s - begin_.own_s)))
        own_s += std::strtod(text.c_str(), nullptr);
    MachineState state = state_between(begin_, now, own_s);
    for (const std::string& text : world_.all_gather(machine_state_to_json(state)))
        state = worst_of(state, machine_state_from_json(text, "machine state of a rank"));
    return state;
}

}  // namespace speedrun
