// build: in cuda_code_tests
#include "tests/cuda/disassembler.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "tests/temp_dir.h"

namespace speedrun::testing {
namespace {

namespace fs = std::filesystem;

bool has_both(const fs::path& folder) {
    return !folder.empty() && fs::exists(folder / "cuobjdump") && fs::exists(folder / "nvdisasm");
}

std::string quoted(const std::string& text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

// Output of a shell command.
std::string output_of(const std::string& command) {
    FILE* const pipe = popen(command.c_str(), "r");
    if (!pipe) throw std::runtime_error("cannot start: " + command);
    std::string output;
    char part[1 << 16];
    while (const size_t size = fread(part, 1, sizeof(part), pipe)) output.append(part, size);
    if (const int status = pclose(pipe); status != 0)
        throw std::runtime_error(
            fmt::format("status {} of: {}\n{}", status, command, output.substr(0, 2000)));
    return output;
}

}  // namespace

std::string find_disassembler() {
    if (const char* const named = std::getenv("SPEEDRUN_DISASSEMBLER")) {
        if (has_both(named)) return named;
        throw std::runtime_error(
            fmt::format("SPEEDRUN_DISASSEMBLER={}: no cuobjdump and nvdisasm there", named));
    }
    const char* const path = std::getenv("PATH");
    std::istringstream folders(fmt::format("{}:{}", path ? path : "", SPEEDRUN_DISASSEMBLER_FOLDERS));
    for (std::string folder; std::getline(folders, folder, ':');)
        if (has_both(folder)) return folder;
    return "";
}

std::map<std::string, SassListing> disassemble(const std::string& tools, const std::string& library,
                                               const std::string& architecture) {
    const TempDir folder;
    output_of(fmt::format("cd {} && {} -xelf .{}. {} 2>&1", quoted(folder.path()),
                          quoted(tools + "/cuobjdump"), architecture, quoted(fs::absolute(library))));
    std::map<std::string, SassListing> kernels;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
        // Disables the data-flow analysis, which takes a quarter of the time and changes no line that is read
        // here.
        std::istringstream listing(
            output_of(fmt::format("{} -c -ndf {}", quoted(tools + "/nvdisasm"), quoted(entry.path()))));
        kernels.merge(read_sass(listing));
    }
    return kernels;
}

}  // namespace speedrun::testing
