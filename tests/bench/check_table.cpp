// The page that a report prints.
#include <fmt/format.h>

#include <algorithm>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

namespace {

constexpr size_t kMaxFailuresOfStep = 12, kMessageLines = 3, kMessageWidth = 150;

std::string text_of(const Json& object, const char* key) {
    const auto it = object.find(key);
    if (it == object.end()) return "";
    return it->is_string() ? it->get<std::string>() : it->dump();
}

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
            out += fmt::format("  {:<32}{:<12}{:>6.1f} s  {}\n", step.value("step", ""),
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
        const std::string name = text_of(op, "name") + (op.value("products", "") == "hand" ? " (hand)" : "");
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

std::string print_report(const Json& report) {
    std::string out;
    for (const auto& [key, value] : report.at("device").items())
        out += fmt::format("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
    out += "\n";
    print_steps(report, out);
    out += "\n";
    print_ops(report, out);
    if (report.value("damaged_lines", 0) > 0)
        out += fmt::format("{} result lines could not be read\n", report.value("damaged_lines", 0));
    out += fmt::format("\nresult: {}\n", report.value("result", "failed"));
    return out;
}

}  // namespace speedrun::bench
