#include "train/commands/option_values.h"

#include <CLI/CLI.hpp>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

const CLI::App* subcommand(const CLI::App& command, const std::string& name) {
    const auto found =
        command.get_subcommands([&](const CLI::App* candidate) { return candidate->get_name() == name; });
    return found.empty() ? nullptr : found.front();
}

std::string name_in(const std::string& argument) {
    return argument.substr(0, argument.find('='));
}

bool is_option(const CLI::App& command, const std::string& argument) {
    return argument.starts_with('-') && command.get_option_no_throw(name_in(argument)) != nullptr;
}

}  // namespace

void expect_values(const CLI::App& app, const std::vector<std::string>& arguments) {
    const CLI::App* command = &app;
    for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
        const std::string& argument = arguments[i];
        if (!is_option(*command, argument)) {
            if (const CLI::App* const next = subcommand(*command, argument)) command = next;
            continue;
        }
        const std::string name = name_in(argument);
        const bool is_flag = command->get_option_no_throw(name)->get_items_expected_max() == 0;
        if (argument == name + "=")
            throw_usage("{}: nothing after '=' (an empty variable of the shell?): {}", argument,
                        is_flag ? "this option takes no value" : "give a value, or leave the option out");
        if (is_flag || argument != name || i + 1 == arguments.size()) continue;
        const std::string& value = arguments[++i];
        if (value.empty()) throw_usage("{}: the value is empty: give one, or leave the option out", name);
        if (value == "--" || is_option(*command, value))
            throw_usage(
                "{}: the value is missing before {} (an empty variable of the shell?); for this text as value: {}={}",
                name, value, name, value);
    }
}

}  // namespace speedrun
