#include <cstdio>
#include <exception>

#include "kernels/device/error.h"
#include "train/comm/supervisor.h"
#include "train/commands/cli.h"

namespace {

int run(int argc, char** argv) {
    try {
        return speedrun::run_command_line(argc, argv);
    } catch (const speedrun::Error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(speedrun::ExitCode::failure);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return speedrun::run_supervised([&] { return run(argc, argv); });
}
