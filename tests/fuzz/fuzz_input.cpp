#include "tests/fuzz/fuzz_input.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/device/error.h"

namespace speedrun::fuzz {

MemoryFile::MemoryFile(std::string_view content)
    : file_(memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(file_)) {
    const auto size = static_cast<ssize_t>(content.size());
    if (file_ < 0 || write(file_, content.data(), content.size()) != size) {
        std::perror("memfd");
        std::abort();
    }
}

MemoryFile::~MemoryFile() {
    close(file_);
}

void expect_clean(const std::function<void()>& parse) {
    try {
        parse();
    } catch (const Error& error) {
        const std::string_view message = error.what();
        const bool right = error.code() == ExitCode::usage || error.code() == ExitCode::data;
        if (right && !message.empty() && message.size() < 100'000) return;
        std::fprintf(stderr, "exit code %d, %zu bytes: %.2000s\n", static_cast<int>(error.code()),
                     message.size(), error.what());
        std::abort();
    }
}

}  // namespace speedrun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    speedrun::fuzz::expect_clean([&] { speedrun::fuzz::parse(input); });
    return 0;
}
