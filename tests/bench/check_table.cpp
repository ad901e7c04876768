// Printed page of a report.
#include <fmt/format.h>

#include <algorithm>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

namespace {

constexpr size_t kMaxFailuresOfStep = 12, kMessageLines = 3, kMessageWidth = 150;

// The first lines of a message, each indented.
std::string indented(const std::string& message) {
    std::string out;
    size_t begin = 0;
    for (size_t i = 0; i < kMessageLines && begin < message.size(); ++i) {
        const size_t end = std::min(message.find('\n', begin), message.size());
        if (end > begin)
            out += fmt::format("      {}\n", message.substr(begin, std::min(end - begin, kMessageWidth)));
        begin = end + 1;
    }
    return out;
}

void print_steps(const Json& report, std::string& out) {
    for (const auto& [stage, state] : report.at("stages").items()) {
        out += fmt::format("{:<10}{}\n", stage, state.get<std::string>());
        for (const Json& step : report.at("steps")) {
            if (step.value("stage", "") != stage) continue;
            std::string counts;
            if (step.contains("tests")) {
                const Json& tests = step.at("tests");
                counts = fmt::format("{} passed, {} failed, {} skipped", tests.value("passed", 0),
                                     tests.value("failed", 0), tests.value("skipped", 0));
            }
            if (const auto clocks = step.find("clocks"); clocks != step.end())
                counts += fmt::format("{}{:.0f} MHz, {:.0f} W, {:.0f} C", counts.empty() ? "" : "; ",
                                      number_of(*clocks, "mhz"), number_of(*clocks, "watts"),
                                      number_of(*clocks, "celsius"));
            out += fmt::format("  {:<42}{:<12}{:>6.1f} s  {}\n", step.value("step", ""),
                               step.value("status", ""), step.value("seconds", 0.0), counts);
            if (step.value("status", "") != "passed") out += indented(step.value("message", ""));
            const Json failures = step.value("failures", Json::array());
            for (size_t i = 0; i < std::min(failures.size(), kMaxFailuresOfStep); ++i) {
                out += fmt::format("    FAILED {}\n{}", failures[i].value("name", ""),
                                   indented(failures[i].value("message", "")));
            }
            if (failures.size() > kMaxFailuresOfStep)
                out += fmt::format("    and {} more\n", failures.size() - kMaxFailuresOfStep);
        }
    }
}

std::string percent(const Json& object, const char* key) {
    return number_of(object, key) > 0 ? fmt::format("{:.0f}%", 100 * number_of(object, key)) : "-";
}

// Training runs: records/gpu_checks/README.md defines the shares of `floor` and `product`.
void print_runs(const Json& report, std::string& out) {
    bool first = true;
    for (const Json& step : report.at("steps")) {
        const auto run = step.find("run");
        if (run == step.end() || !run->contains("step_ms")) continue;
        if (first)
            out += fmt::format("{:<47}{:>12}{:>10}{:>9}{:>9}{:>9}{:>8}{:>10}{:>9}  loss\n", "run", "tokens/s",
                               "step ms", "optim.", "TFLOP/s", "product", "floor", "start s", "GiB");
        first = false;
        out += fmt::format(
            "{:<47}{:>12.0f}{:>10.3f}{:>9.3f}{:>9.1f}{:>9}{:>8}{:>10.2f}{:>9.2f}  {:.4f} to {:.4f}",
            step.value("stage", "") + " " + step.value("step", ""), number_of(*run, "tokens_per_s"),
            number_of(*run, "step_ms"), number_of(*run, "optimizer_ms"), number_of(*run, "tflops"),
            percent(*run, "share_of_product"), percent(*run, "share_of_floor"),
            number_of(*run, "startup_ms") / 1e3, number_of(*run, "memory_mib") / 1024,
            number_of(*run, "first_loss"), number_of(*run, "last_loss"));
        if (run->contains("largest_difference"))
            out += fmt::format(", {:.1e} from those it is held to", number_of(*run, "largest_difference"));
        if (run->value("same_bits", false)) out += ", same bits again";
        if (number_of(*run, "time_to_target_ms") > 0)
            out += fmt::format(", target after {:.2f} s", number_of(*run, "time_to_target_ms") / 1e3);
        out += "\n";
    }
    if (!first) out += "\n";
}

void print_peers(const Json& report, std::string& out) {
    for (const Json& step : report.at("steps")) {
        const auto peers = step.find("peers");
        if (peers == step.end() || !peers->contains("peers")) continue;
        out += fmt::format("{}: PyTorch {}, {}, {} tokens a step\n", step.value("step", ""),
                           text_of(*peers, "torch"), text_of(*peers, "peer_device"),
                           text_of(*peers, "tokens_per_step"));
        for (const Json& check : peers->value("checks", Json::array()))
            out += fmt::format("  {} losses, {:<14} {} from speedrun's\n", text_of(check, "steps"),
                               text_of(check, "name"), text_of(check, "largest_difference"));
        for (const Json& peer : peers->at("peers"))
            out += fmt::format(
                "  {:<22}{:>12.0f} tokens/s{:>10.3f} ms  first step after {:>6.2f} s  speedrun x{:.3f}\n",
                text_of(peer, "name"), number_of(peer, "tokens_per_s"), number_of(peer, "step_ms"),
                number_of(peer, "first_step_s"), number_of(peer, "speedrun_is_faster_by"));
        out += "\n";
    }
}

void print_ops(const Json& report, std::string& out) {
    for (const Json& c : report.at("ceilings")) {
        out += fmt::format("ceilings: {:.1f} GB/s ({}), {:.1f} TFLOP/s ({}){}\n", c.value("gb_per_s", 0.0),
                           text_of(c, "copy_by"), c.value("tflops", 0.0), text_of(c, "product_by"),
                           c.value("library_product", false) ? "" : ": our own kernel's, shares flatter");
        if (c.contains("warning")) out += fmt::format("  warning: {}\n", text_of(c, "warning"));
    }
    if (report.at("ops").empty()) return;
    out += fmt::format("{:<42}{:>11}{:>9}{:>9}{:>11}{:>7}  expected ms\n", "operation", "median ms",
                       "TFLOP/s", "GB/s", "floor ms", "share");
    for (const Json& op : report.at("ops")) {
        const std::string products = op.value("products", "library");
        const std::string name = text_of(op, "name") + (products == "library" ? "" : " (" + products + ")") +
                                 (op.value("attention", "") == "cudnn" ? " (cuDNN)" : "");
        if (op.value("status", "") != "passed") {
            out += fmt::format("{:<42}FAILED\n{}", name, indented(text_of(op, "failure")));
            continue;
        }
        std::string expectations;
        for (const Json& published : op.value("published", Json::array()))
            expectations +=
                fmt::format("  {} {:.4g}", text_of(published, "source"), published.value("ms", 0.0));
        out += fmt::format("{:<42}{:>11.4g}{:>9.3g}{:>9.0f}{:>11.4g}{:>6.0f}%{}\n", name,
                           op.value("median_ms", 0.0), op.value("tflops", 0.0), op.value("gb_per_s", 0.0),
                           op.value("floor_ms", 0.0), op.value("share_of_floor", 0.0) * 100, expectations);
    }
}

}  // namespace

std::string text_of(const Json& object, const char* key) {
    const auto it = object.find(key);
    if (it == object.end()) return "";
    return it->is_string() ? it->get<std::string>() : it->dump();
}

double number_of(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}

std::string print_report(const Json& report) {
    std::string out;
    for (const auto& [key, value] : report.at("device").items())
        out += fmt::format("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    const Json calls = report.value("calls", Json::array());
    for (size_t i = 0; i < calls.size() && calls.size() > 1; ++i)
        out += fmt::format("call {}: {}, {}\n", i + 1, text_of(calls[i], "date"),
                           text_of(calls[i], "nvidia_smi"));
    out += "\n";
    print_steps(report, out);
    out += "\n";
    print_runs(report, out);
    print_peers(report, out);
    print_ops(report, out);
    if (report.value("damaged_lines", 0) > 0)
        out += fmt::format("{} result lines could not be read\n", report.value("damaged_lines", 0));
    out += fmt::format("\nresult: {}\n", report.value("result", "failed"));
    return out + print_decisions(report);
}

std::string print_states(const Json& report) {
    std::string out;
    for (const Json& step : report.at("steps"))
        out +=
            fmt::format("{} {} {}\n", text_of(step, "stage"), text_of(step, "step"), text_of(step, "status"));
    return out;
}

}  // namespace speedrun::bench
