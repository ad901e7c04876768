// Sanitizers make a test ten times slower, and find their errors in every run of it, so sanitized builds use fewer cases and
// steps. The values are checked by the release build.
#pragma once

namespace speedrun::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace speedrun::testing
