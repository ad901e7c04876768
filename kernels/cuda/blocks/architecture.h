// Target GPU of a compiler pass. Selects launch bounds and unrolling, which change no result.
#pragma once

namespace speedrun {

// 900 for sm_90a; 0 for the host, which ignores both.
#ifdef __CUDA_ARCH__
constexpr int kArchitecture = __CUDA_ARCH__;
#else
constexpr int kArchitecture = 0;
#endif
constexpr bool kSm90 = kArchitecture >= 900 && kArchitecture < 1000;
constexpr bool kSm100 = kArchitecture >= 1000 && kArchitecture < 1200;
constexpr bool kSm120 = kArchitecture >= 1200;

}  // namespace speedrun
