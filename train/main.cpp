#include <cstdio>
#include <exception>
#include <functional>
#include <new>

#include "kernels/device/error.h"
#include "train/comm/supervisor.h"
#include "train/commands/cli.h"

namespace {

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
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(speedrun::ExitCode::failure);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return run([&] {
        return speedrun::run_supervised(
            [&] { return run([&] { return speedrun::run_command_line(argc, argv); }); });
    });
}
