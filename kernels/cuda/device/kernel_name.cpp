#include "kernels/cuda/device/kernel_name.h"

#include <cxxabi.h>

#include <cctype>
#include <cstdlib>
#include <string_view>

namespace speedrun {

std::string short_kernel_name(const char* mangled) {
    int status = 0;
    char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    if (status != 0) return mangled;
    std::string name = demangled;
    std::free(demangled);
    for (const std::string& noise : {std::string("(anonymous namespace)::"), std::string("speedrun::")}) {
        for (size_t at = name.find(noise); at != std::string::npos; at = name.find(noise))
            name.erase(at, noise.size());
    }
    constexpr std::string_view kOfFile = "_cu::";  // a namespace of every .cu file
    for (size_t at = name.find(kOfFile); at != std::string::npos; at = name.find(kOfFile)) {
        size_t begin = at;
        while (begin > 0 &&
               (std::isalnum(static_cast<unsigned char>(name[begin - 1])) != 0 || name[begin - 1] == '_'))
            --begin;
        name.erase(begin, at + kOfFile.size() - begin);
    }
    // Outside template arguments: the return type ends at a space, the parameter list begins at a
    // parenthesis.
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i < name.size(); ++i) {
        if (name[i] == '<') ++depth;
        if (name[i] == '>') --depth;
        if (depth > 0) continue;
        if (name[i] == ' ') begin = i + 1;
        if (name[i] == '(') return name.substr(begin, i - begin);
    }
    return name.substr(begin);
}

}  // namespace speedrun
