#include "train/records/commit_times.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <vector>

namespace speedrun {

namespace {

// Returns the output of git; none if it fails or is not installed.
std::optional<std::string> git(const std::string& folder, std::vector<std::string> words) {
    words.insert(words.begin(), {"git", "-C", folder});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) return std::nullopt;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    pid_t child = 0;
    const int error = ::posix_spawnp(&child, "git", &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    std::string text;
    std::array<char, 4096> piece;
    for (ssize_t got = 0; error == 0 && (got = ::read(pipe[0], piece.data(), piece.size())) > 0;)
        text.append(piece.data(), static_cast<size_t>(got));
    ::close(pipe[0]);
    int status = 1;
    if (error != 0 || ::waitpid(child, &status, 0) != child || status != 0) return std::nullopt;
    return text;
}

}  // namespace

bool has_history(const std::string& folder, const std::string& file) {
    return git(folder, {"rev-parse", "--is-shallow-repository"}) == "false\n" &&
           git(folder, {"ls-files", "--error-unmatch", file}).has_value();
}

std::optional<int64_t> commit_time(const std::string& folder, const std::string& git_sha) {
    const auto text = git(folder, {"log", "-1", "--format=%ct", git_sha + "^{commit}", "--"});
    if (!text || text->empty()) return std::nullopt;
    return std::strtoll(text->c_str(), nullptr, 10);
}

}  // namespace speedrun
