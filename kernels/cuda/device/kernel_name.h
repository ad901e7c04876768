// Readable kernel names.
#pragma once

#include <string>

namespace speedrun {

// "void speedrun::(anonymous namespace)::norm_kernel<float>(float*, long)" -> "norm_kernel<float>", from the
// mangled name. Any other string is returned unchanged.
std::string short_kernel_name(const char* mangled);

}  // namespace speedrun
