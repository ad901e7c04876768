#include "train/commands/graphviz.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "kernels/device/error.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace speedrun {

namespace {

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

File temporary_file() {
    File file(std::tmpfile());
    if (!file)
        throw_data("no temporary file can be made (errno {}): set TMPDIR to a folder with space", errno);
    return file;
}

}  // namespace

// Files instead of pipes: dot may stop reading at any time, and a pipe could deadlock.
std::string svg_of(const DotPicture& picture) {
    const auto& [text, option] = picture;
    const File in = temporary_file(), out = temporary_file();
    if (std::fwrite(text.data(), 1, text.size(), in.get()) != text.size() || std::fflush(in.get()) != 0)
        throw_data("a temporary file of {} bytes cannot be written", text.size());
    std::rewind(in.get());

    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) throw_data("{}: no process can be described (errno {})", option, error);
    error = posix_spawn_file_actions_adddup2(&actions, fileno(in.get()), STDIN_FILENO);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, fileno(out.get()), STDOUT_FILENO);
    std::string program = "dot", format = "-Tsvg";
    char* const arguments[] = {program.data(), format.data(), nullptr};
    pid_t child = -1;
    if (error == 0) error = posix_spawnp(&child, "dot", &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        throw_usage(
            "{}: dot of Graphviz cannot be run (errno {}): install the package graphviz, or name a .dot file, "
            "which needs no program",
            option, error);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        throw_usage("{}: dot of Graphviz failed (wait status {}); name a .dot file to see its text", option,
                    status);

    std::string svg;
    std::rewind(out.get());
    char piece[1 << 14];
    for (size_t got; (got = std::fread(piece, 1, sizeof(piece), out.get())) > 0;) svg.append(piece, got);
    return svg;
}

}  // namespace speedrun
