// A library loaded at run time, so that the program starts without it. Stays loaded for the life of the
// process.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <type_traits>

namespace speedrun {

class SharedLibrary {
  public:
    explicit SharedLibrary(std::string name) : name_(std::move(name)) {
        handle_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle_) problem_ = dlerror();
    }
    // Sets `function` to the symbol of this name, null if there is none; Function is a pointer type.
    template <class Function>
    void find(Function& function, const char* symbol) {
        function = handle_ ? reinterpret_cast<Function>(dlsym(handle_, symbol)) : nullptr;
        if (!function && problem_.empty()) problem_ = fmt::format("{} has no {}", name_, symbol);
    }
    // Reason why the library or a requested function is not available; empty: no problem.
    const std::string& problem() const { return problem_; }

  private:
    const std::string name_;
    void* handle_ = nullptr;
    std::string problem_;
};

}  // namespace speedrun
