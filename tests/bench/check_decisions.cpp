// The table of decisions: each open default next to the measurement and the rule that decide it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

namespace {

constexpr double kFaster = 0.99;         // factor of the step time: a switch must gain 1%
constexpr double kGroupsOf128Ms = 3.6;   // FP8 loss of 32,768 x 50,304
constexpr double kTwoLossBlocks = 0.55;  // share of the bound; two blocks reach 0.73 on an H100
constexpr double kModelError = 0.05, kOptimizerError = 0.1, kSlower = 1.05;

using Names = std::vector<std::string>;

struct Row {
    std::string question, measured, rule, decision;
};

Json list_of(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_array() ? *it : Json::array();
}

// Returns by how much `value` exceeds `base`, such as "+3.1%".
std::string excess(double value, double base) {
    return fmt::format("{:+.1f}%", 100 * (value / base - 1));
}

class Decisions {
  public:
    Decisions(const Json& report, const Json& pinned) : report_(report), pinned_(pinned) {}

    Json rows() const {
        Json table = Json::array();
        for (const Row& row : {attention(), dependent_launch(), finished_rows(), fp8_matmuls(), loss_blocks(),
                               optimizer(), model(), twin(), launch_order(), sanitizer(), pinned()}) {
            const bool measured = !row.measured.empty();
            table.push_back({{"question", row.question},
                             {"measured", measured ? row.measured : "not measured"},
                             {"rule", row.rule},
                             {"decision", measured ? row.decision : "-"}});
        }
        return table;
    }

  private:
    // Returns the steps of a stage that ended with a result.
    std::vector<Json> ended(const char* stage) const {
        std::vector<Json> steps;
        for (const Json& step : report_.at("steps")) {
            const std::string status = text_of(step, "status");
            if (text_of(step, "stage") == stage && (status == "passed" || status == "failed"))
                steps.push_back(step);
        }
        return steps;
    }
    // Returns the passed runs among these steps of the stage "step".
    std::vector<Json> runs(const Names& names) const {
        std::vector<Json> found;
        for (const Json& step : ended("step")) {
            const auto run = step.find("run");
            if (std::count(names.begin(), names.end(), text_of(step, "step")) > 0 &&
                text_of(step, "status") == "passed" && run != step.end() && number_of(*run, "step_ms") > 0)
                found.push_back(*run);
        }
        return found;
    }
    const Json* op(const char* name) const {
        for (const Json& op : report_.at("ops"))
            if (text_of(op, "name") == name && text_of(op, "status") == "passed") return &op;
        return nullptr;
    }
    // Returns the first note of these runs that contains one of the words; "" without one.
    static std::string note_of(const std::vector<Json>& runs, const Names& words) {
        for (const Json& run : runs)
            for (const Json& note : list_of(run, "notes"))
                for (const std::string& word : words)
                    if (note.is_string() && note.get<std::string>().find(word) != std::string::npos)
                        return note;
        return "";
    }
    // Returns true if the tests have run to their end and none failed with this word in its name; null: not run.
    std::optional<bool> tests_passed(const char* word) const {
        std::optional<bool> passed;
        for (const Json& step : ended("tests")) {
            bool good = text_of(step, "status") == "passed";
            if (!good && number_of(step, "exit_code") == 1) {
                const Json failures = list_of(step, "failures");
                good = !failures.empty() &&
                       std::none_of(failures.begin(), failures.end(), [&](const Json& failure) {
                           return text_of(failure, "name").find(word) != std::string::npos;
                       });
            }
            passed = passed.value_or(true) && good;
        }
        return passed;
    }

    struct Switch {
        const char *question, *on, *off, *tests;
        Names off_notes;  // notes of a run in which the switch had no effect
        std::vector<std::pair<Names, Names>>
            runs;  // with the switch off and on; the first pair that was measured counts
    };
    Row decide(const Switch& s) const {
        Row row{s.question, "", "tests pass, step at least 1% faster", s.off};
        for (const auto& [off_names, on_names] : s.runs) {
            const std::vector<Json> off = runs(off_names), on = runs(on_names);
            if (off.empty() || on.empty()) continue;
            const auto mean = [](const std::vector<Json>& of) {
                double sum = 0;
                for (const Json& run : of) sum += number_of(run, "step_ms");
                return sum / static_cast<double>(of.size());
            };
            const std::optional<bool> passed = tests_passed(s.tests);
            const std::string note = note_of(on, s.off_notes);
            row.measured = fmt::format("{:.4g} to {:.4g} ms ({}), tests {}{}", mean(off), mean(on),
                                       excess(mean(on), mean(off)),
                                       !passed   ? "not run"
                                       : *passed ? "passed"
                                                 : "failed",
                                       note.empty() ? "" : "; " + note);
            if (passed.value_or(false) && note.empty() && mean(on) <= kFaster * mean(off))
                row.decision = s.on;
            break;
        }
        return row;
    }
    Row attention() const {
        return decide({"cuda.attention",
                       "wgmma",
                       "hand",
                       "Attention",
                       {"attention by wgmma"},
                       {{{"modern,library,8_microbatches", "modern,library,again,8_microbatches"},
                         {"modern,library,wgmma,8_microbatches"}},
                        {{"modern,library"}, {"modern,library,wgmma"}}}});
    }
    Row dependent_launch() const {
        return decide(
            {"cuda.dependent_launch",
             "true",
             "false",
             "DependentLaunch",
             {"cuda.dependent_launch"},
             {{{"modern,library,wgmma,8_microbatches"}, {"modern,library,wgmma+early,8_microbatches"}},
              {{"modern,library"}, {"modern,library,early"}}}});
    }
    Row finished_rows() const {
        Row row{"rows of a group, FP8 loss", "", fmt::format("at most {} ms: 128", kGroupsOf128Ms), ""};
        if (const Json* const loss = op("pointwise.recipe.cross_entropy_3_targets_fp8")) {
            const double ms = number_of(*loss, "median_ms");
            row.measured = fmt::format("{:.4g} ms", ms);
            row.decision = ms <= kGroupsOf128Ms ? "keep 128" : "32: less to transpose at the end";
        }
        return row;
    }
    Row fp8_matmuls() const {
        Row row{"FP8 matmuls by cuBLASLt", "", "no note; above the bf16 rate", "yes"};
        const std::vector<Json> recipes = runs({"r44", "newest"});
        const std::string note = note_of(recipes, {"cuBLASLt has no kernel", "cuBLASLt cannot be used"});
        const Json* const head = op("fp8.recipe.head.forward");
        if (!head && recipes.empty()) return row;
        double bf16 = 0;
        for (const Json& peak : report_.at("ceilings")) bf16 = std::max(bf16, number_of(peak, "tflops"));
        const double rate = head ? number_of(*head, "tflops") : 0;
        row.measured =
            (head ? fmt::format("head {:.4g} TFLOP/s, bf16 {:.4g}", rate, bf16) : "head not timed") +
            fmt::format(", {} runs {}", recipes.size(), note.empty() ? "without note" : "with: " + note);
        if (!note.empty() || (head && rate <= bf16))
            row.decision = "no: our kernel ran; find the refused type";
        return row;
    }
    Row loss_blocks() const {
        Row row{"loss blocks a multiprocessor", "",
                fmt::format("at least {:.0f}% of the bound: 2", 100 * kTwoLossBlocks), ""};
        if (const Json* const loss = op("pointwise.recipe.cross_entropy")) {
            const double share = number_of(*loss, "share_of_floor");
            row.measured = fmt::format("{:.0f}% of the bound", 100 * share);
            row.decision = share >= kTwoLossBlocks ? "2: keep kLossCacheBytes" : "1: reduce kLossCacheBytes";
        }
        return row;
    }
    Row optimizer() const {
        Row row{"optimizer's time a step", "",
                fmt::format("within {:.0f}% of the modelled one", 100 * kOptimizerError), ""};
        for (const Json& run : runs({"modern,library,8_microbatches"})) {
            const double ms = number_of(run, "optimizer_ms"),
                         modelled = number_of(run, "modelled_optimizer_ms");
            if (modelled <= 0) continue;
            row.measured = fmt::format("{:.4g} ms, modelled {:.4g} ({})", ms, modelled, excess(ms, modelled));
            row.decision = std::abs(ms / modelled - 1) <= kOptimizerError
                               ? "keep the model"
                               : fmt::format("explain {:.3g} ms by the trace", ms - modelled);
        }
        return row;
    }
    Row model() const {
        Row row{"modelled step (plan --gpu)", "", fmt::format("within {:.0f}%", 100 * kModelError),
                "keep the model"};
        Names wrong;
        for (const char* const name : {"modern,library,8_microbatches", "r44", "newest"}) {
            for (const Json& run : runs({name})) {
                const double ms = number_of(run, "step_ms"), modelled = number_of(run, "modelled_ms");
                if (modelled <= 0) continue;
                const std::string title = std::string(name).substr(0, std::string(name).find(','));
                row.measured +=
                    fmt::format("{}{} {:.4g} for {:.4g} ms ({})", row.measured.empty() ? "" : ", ", title,
                                modelled, ms, excess(modelled, ms));
                if (std::abs(modelled / ms - 1) > kModelError) wrong.push_back(title);
            }
        }
        if (!wrong.empty()) row.decision = fmt::format("correct it: {}", fmt::join(wrong, ", "));
        return row;
    }
    Row twin() const {
        Row row{"PyTorch twin", "", "same losses, ratio of step times", ""};
        for (const Json& step : ended("peer")) {
            if (text_of(step, "step").find("modern") != 0) continue;
            const auto peers = step.find("peers");
            if (peers == step.end()) continue;
            for (const Json& peer : list_of(*peers, "peers")) {
                const double ratio = number_of(peer, "speedrun_is_faster_by");
                if (ratio <= 0 || text_of(peer, "name").find("speedrun") == 0) continue;
                row.measured =
                    fmt::format("{} {:.4g} ms, x{:.3f}{}", text_of(peer, "name"), number_of(peer, "step_ms"),
                                ratio, text_of(step, "status") == "passed" ? "" : "; the comparison failed");
                row.decision = fmt::format("speedrun is {:.1f}% {}", 100 * std::abs(ratio - 1),
                                           ratio >= 1 ? "faster" : "slower");
            }
        }
        return row;
    }
    Row launch_order() const {
        Row row{"NCCL_LAUNCH_ORDER_IMPLICIT", "", "runs pass with 1", ""};
        std::map<std::string, std::map<std::string, int>> counts;  // order, status
        for (const Json& step : ended("ranks")) {
            const std::string name = text_of(step, "step");
            if (name.find("nccl,order_") == 0) ++counts[name.substr(11, 1)][text_of(step, "status")];
        }
        if (counts.empty()) return row;
        const auto text = [&](const char* order) {
            return fmt::format("{}: {} passed, {} failed", order, counts[order]["passed"],
                               counts[order]["failed"]);
        };
        row.measured = text("1") + "; " + text("0");
        row.decision = counts["1"]["failed"] > 0   ? "chain communicators by events"
                       : counts["1"]["passed"] < 1 ? "run it with 1"
                       : counts["0"]["failed"] > 0 ? "keep 1: it hangs without"
                                                   : "keep 1: no hang seen without";
        return row;
    }
    Row sanitizer() const {
        Row row{"sanitizer", "", "no finding", "none"};
        Names findings;
        for (const Json& step : ended("sanitize")) {
            const std::string name = text_of(step, "step"), status = text_of(step, "status");
            row.measured += (row.measured.empty() ? "" : ", ") + name + " " + status;
            if (status == "failed") findings.push_back(name);
        }
        if (!findings.empty())
            row.decision = fmt::format("switch nothing before it is fixed: {}", fmt::join(findings, ", "));
        return row;
    }

    // Returns the times of a report in ms, by a name for each operation and run.
    static std::map<std::string, double> times_of(const Json& report) {
        std::map<std::string, double> times;
        for (const Json& op : list_of(report, "ops")) {
            std::string key = "operation";
            for (const char* part : {"name", "dtype", "products", "attention"})
                key += " " + text_of(op, part);
            if (text_of(op, "status") == "passed") times[key] = number_of(op, "median_ms");
        }
        for (const Json& step : list_of(report, "steps")) {
            const auto run = step.find("run");
            if (run != step.end() && text_of(step, "status") == "passed" && text_of(step, "stage") == "step")
                times["step " + text_of(step, "step")] = number_of(*run, "step_ms");
        }
        return times;
    }
    Row pinned() const {
        Row row{"figures pinned in the bundle", "", "none more than 5% slower", "no regression"};
        const auto gpu = [](const Json& report) {
            const std::string all = text_of(report.value("device", Json::object()), "card");
            return all.substr(0, all.find(';'));
        };
        if (pinned_.is_null() || gpu(pinned_) != gpu(report_)) return row;
        const std::map<std::string, double> before = times_of(pinned_), now = times_of(report_);
        int num_compared = 0, num_slower = 0;
        double worst = kSlower;
        for (const auto& [name, ms] : now) {
            const auto old = before.find(name);
            if (old == before.end() || old->second <= 0) continue;
            ++num_compared;
            if (ms <= kSlower * old->second) continue;
            ++num_slower;
            if (ms / old->second <= worst) continue;
            worst = ms / old->second;
            row.decision = fmt::format("find the cause: {} {}", name, excess(ms, old->second));
        }
        if (num_compared > 0) row.measured = fmt::format("{} of {} are slower", num_slower, num_compared);
        return row;
    }

    const Json &report_, &pinned_;
};

}  // namespace

Json decisions_of(const Json& report, const Json& pinned) {
    return Decisions(report, pinned).rows();
}

std::string print_decisions(const Json& report) {
    const Json decisions = list_of(report, "decisions");
    constexpr std::array kColumns = {"question", "measured", "rule", "decision"};
    std::map<std::string, size_t> width;
    bool any = false;
    for (const char* key : kColumns) {
        width[key] = std::string(key).size();
        for (const Json& row : decisions) width[key] = std::max(width[key], text_of(row, key).size());
    }
    for (const Json& row : decisions) any |= text_of(row, "measured") != "not measured";
    if (!any) return "";
    const bool rehearsed = text_of(report.at("device"), "checked_device") == "cpu";
    std::string out =
        fmt::format("\nwhat this decides{}\n", rehearsed ? " (a rehearsal on the CPU: nothing)" : "");
    const auto line = [&](const auto& cell) {
        for (const char* key : kColumns)
            out +=
                key == kColumns.back() ? cell(key) + "\n" : fmt::format("{:<{}} | ", cell(key), width[key]);
    };
    line([](const char* key) { return std::string(key); });
    for (const Json& row : decisions) line([&](const char* key) { return text_of(row, key); });
    return out;
}

}  // namespace speedrun::bench
