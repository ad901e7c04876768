#include "train/comm/joint_check.h"

#include <algorithm>
#include <chrono>

#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

constexpr char kFine = '0';  // no error; else the exit code as one digit, then the text

std::string outcome_of(const std::function<void()>& check) {
    try {
        check();
        return {kFine};
    } catch (const Error& error) {
        return fmt::format("{}{}", static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
        return fmt::format("{}{}", static_cast<int>(ExitCode::failure), error.what());
    }
}

void throw_first(World& world, const std::string& outcome) {
    const std::vector<std::string> outcomes = world.all_gather(outcome);
    const auto failed = [](const std::string& outcome) { return outcome.front() != kFine; };
    const auto first = std::find_if(outcomes.begin(), outcomes.end(), failed);
    if (first == outcomes.end()) return;
    const auto code = static_cast<ExitCode>(first->front() - kFine);
    if (std::all_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o == *first; }))
        throw JointError(code, first->substr(1));
    std::string text;
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
        if (!failed(outcomes[rank])) continue;
        // A text reported by several ranks is printed once, for the lowest rank.
        const auto before = outcomes.begin() + static_cast<std::ptrdiff_t>(rank);
        if (std::find(outcomes.begin(), before, outcomes[rank]) != before) continue;
        text += fmt::format("{}rank {}: {}", text.empty() ? "" : "\n", rank, outcomes[rank].substr(1));
    }
    throw JointError(code, text);
}

}  // namespace

void check_together(World& world, const std::function<void()>& check) {
    throw_first(world, outcome_of(check));
}

void work_together(World& world, const std::function<void()>& work) {
    constexpr std::chrono::milliseconds kPatience{100};
    std::future<std::string> outcome = start_task([&] { return outcome_of(work); });
    while (world.max(can_get(outcome, kPatience) ? 0 : 1) > 0) {
    }
    throw_first(world, outcome.get());
}

void check_together(World* world, const std::function<void()>& check) {
    if (world) return check_together(*world, check);
    const std::string outcome = outcome_of(check);
    if (outcome.front() != kFine)
        throw JointError(static_cast<ExitCode>(outcome.front() - kFine), outcome.substr(1));
}

}  // namespace speedrun
