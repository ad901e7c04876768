#include "tests/cuda/ptxas_log.h"

#include <cxxabi.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

namespace speedrun::testing {

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> logs_in(const std::string& folder) {
    std::vector<fs::path> logs;
    if (!fs::is_directory(folder)) return logs;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (entry.path().extension() == ".ptxas") logs.push_back(entry.path());
    return logs;
}

int64_t number_before(const std::string& line, const std::string& words) {
    std::smatch match;
    return std::regex_search(line, match, std::regex("(\\d+) " + words)) ? std::stoll(match[1]) : 0;
}

void read_log(const fs::path& path, std::map<std::string, std::map<std::string, KernelResources>>& kernels) {
    static const std::regex kEntry("Compiling entry function '([^']+)' for '([^']+)'");
    std::ifstream file(path);
    KernelResources* current = nullptr;
    for (std::string line; std::getline(file, line);) {
        std::smatch match;
        if (std::regex_search(line, match, kEntry)) {
            current = &kernels[match[2]][match[1]];
        } else if (line.find("warning") != std::string::npos) {
            current = nullptr;  // about a called function, which another line counts
        } else if (current && line.find("stack frame") != std::string::npos) {
            current->stack_bytes = number_before(line, "bytes stack frame");
            current->spill_bytes =
                number_before(line, "bytes spill stores") + number_before(line, "bytes spill loads");
        } else if (current && line.find(" registers") != std::string::npos) {
            std::smatch used;
            if (std::regex_search(line, used, std::regex("Used (\\d+) registers")))
                current->registers = std::stoll(used[1]);
            current->static_shared = number_before(line, "bytes smem");
        }
    }
}

// Start of the parameter list of a demangled function: the last '(' at bracket depth 0.
size_t parameters_begin(const std::string& name) {
    int depth = 0;
    for (size_t i = name.size(); i-- > 0;) {
        if (name[i] == ')') ++depth;
        if (name[i] == '(' && --depth == 0) return i;
    }
    return name.size();
}

}  // namespace

std::map<std::string, std::map<std::string, KernelResources>> read_ptxas_logs(const std::string& folder) {
    std::map<std::string, std::map<std::string, KernelResources>> kernels;
    for (const fs::path& path : logs_in(folder)) read_log(path, kernels);
    return kernels;
}

std::vector<std::string> ptxas_lines(const std::string& folder, const std::string& text) {
    std::vector<std::string> lines;
    for (const fs::path& path : logs_in(folder)) {
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);)
            if (line.find(text) != std::string::npos) lines.push_back(line);
    }
    return lines;
}

std::string short_name(const std::string& mangled) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
    if (status != 0) return mangled;
    std::string name = std::regex_replace(
        std::string(text.get()),
        std::regex("speedrun::|\\(anonymous namespace\\)::|cuda::|[a-z0-9_]+_cu::|^void "), "");
    return name.substr(0, parameters_begin(name));
}

}  // namespace speedrun::testing
