#include "kernels/cuda/device/kernel_name.h"

#include <cxxabi.h>

#include <cstdlib>

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
    // Outside of template arguments: the return type ends at a space, the arguments begin at a parenthesis.
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
