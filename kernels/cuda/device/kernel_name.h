// Names of kernels for people.
#pragma once

#include <string>

namespace speedrun {

// "void speedrun::(anonymous namespace)::norm_kernel<float>(float*, long)" -> "norm_kernel<float>", from the
// mangled name. What is not a mangled name stays as it is.
std::string short_kernel_name(const char* mangled);

}  // namespace speedrun
