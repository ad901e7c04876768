#include "train/commands/commit_build.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "kernels/device/error.h"
#include "train/commands/program_run.h"

namespace speedrun {

namespace {

constexpr const char* kOtherWay = "give a program of that commit with --binary";

int run_said(const std::vector<std::string>& words) {
    std::printf("%s\n", fmt::format("{}", fmt::join(words, " ")).c_str());
    std::fflush(stdout);
    return run_program(words, true);
}

}  // namespace

std::string build_commit(const std::string& git_sha, bool cuda) {
    namespace fs = std::filesystem;
    const fs::path tree = fs::path("build") / "rerun" / git_sha,
                   program = tree / "build" / "rerun" / "speedrun";
    int code = 0;
    try {
        code = run_program({"git", "rev-parse", "--verify", "--quiet", git_sha + "^{commit}"}, true);
    } catch (const Error& error) {
        throw_usage("{}; {}", error.what(), kOtherWay);
    }
    if (code != 0)
        throw_usage("{} is no commit of a git repository here: call this from a whole clone, or {}", git_sha,
                    kOtherWay);
    if (!fs::exists(tree) &&
        run_said({"git", "worktree", "add", "--quiet", "--force", "--detach", tree.string(), git_sha}) != 0)
        throw_usage("git worktree add {}: failed; `git worktree prune` forgets trees that are gone",
                    tree.string());
    const std::string build = (tree / "build" / "rerun").string();
    if (run_said({"cmake", "-S", tree.string(), "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                  cuda ? "-DSPEEDRUN_CUDA=ON" : "-DSPEEDRUN_CUDA=OFF", "-DSPEEDRUN_UNITY=ON"}) != 0 ||
        run_said({"cmake", "--build", build, "--target", "speedrun"}) != 0)
        throw_usage("{}: the build failed; {}", build, kOtherWay);
    if (!fs::exists(program))
        throw_usage("{}: the build made no such program; {}", program.string(), kOtherWay);
    return fs::absolute(program).string();
}

}  // namespace speedrun
