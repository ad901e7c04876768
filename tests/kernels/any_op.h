// Calls any operation by the type of its arguments.
#pragma once

#include "kernels/ops/ops.h"

namespace speedrun::testing {

#define SPEEDRUN_ANY_OP(name, Arguments)                                 \
    inline const char* name_of_op(const op::Arguments*) {                \
        return #name;                                                    \
    }                                                                    \
    inline void call(Ops& ops, const op::Arguments& a, Stream& stream) { \
        ops.name(a, stream);                                             \
    }
SPEEDRUN_EACH_OP(SPEEDRUN_ANY_OP)
#undef SPEEDRUN_ANY_OP

}  // namespace speedrun::testing
