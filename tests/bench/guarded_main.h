// main() of every tool here: runs the body and turns an exception into a message and an exit code.
#pragma once

#include <cstdio>
#include <exception>

#include "kernels/device/error.h"

namespace speedrun::bench {

inline int guarded_main(int (*body)(int, char**), int argc, char** argv) {
    try {
        return body(argc, argv);
    } catch (const Error& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return static_cast<int>(ExitCode::failure);
    }
}

}  // namespace speedrun::bench
