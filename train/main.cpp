#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <set>
#include <string_view>

#include "kernels/device/error.h"
#include "train/comm/standard_streams.h"
#include "train/comm/stop_signals.h"
#include "train/comm/supervisor.h"
#include "train/commands/cli.h"

namespace {

// True if the command's result is text on stdout, and not files: then text that cannot be written is a failure.
bool result_is_printed(int argc, char** argv) {
    static const std::set<std::string_view> kFiles{"train",   "launch", "gradients",
                                                   "prepare", "import", "export"};
    const std::string_view command = argc > 1 ? argv[1] : "", part = argc > 2 ? argv[2] : "";
    return !kFiles.contains(command) && !(command == "records" && part == "attempt");
}

int run_command(int argc, char** argv) {
    const int code = speedrun::run_command_line(argc, argv);
    if (code != 0 || speedrun::flush_standard_output() || !result_is_printed(argc, argv)) return code;
    std::fprintf(stderr, "error: stdout: writing failed (disk full?)\n");
    return static_cast<int>(speedrun::ExitCode::failure);
}

// Returns the exit code of `body`, or that of its error.
int run(const std::function<int()>& body) {
    try {
        return body();
    } catch (const speedrun::Error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "error: out of memory; `speedrun doctor` prints the limits of this process\n");
        return static_cast<int>(speedrun::ExitCode::usage);
    } catch (const std::filesystem::filesystem_error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        // A path that leads nowhere is the user's; a disk that fails is not.
        const bool bad_path = error.code() == std::errc::too_many_symbolic_link_levels ||
                              error.code() == std::errc::filename_too_long ||
                              error.code() == std::errc::not_a_directory;
        return static_cast<int>(bad_path ? speedrun::ExitCode::data : speedrun::ExitCode::failure);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(speedrun::ExitCode::failure);
    }
}

}  // namespace

int main(int argc, char** argv) {
    speedrun::open_standard_streams();
    speedrun::ignore_write_signals();
    return run([&] {
        return speedrun::run_supervised([&] { return run([&] { return run_command(argc, argv); }); });
    });
}
