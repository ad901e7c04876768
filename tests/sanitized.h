// Sanitizers make a test ten times slower, and what they are to find is in every run of it: there, fewer cases and steps. What the
// numbers are is for the release build to show.
#pragma once

namespace speedrun::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace speedrun::testing
