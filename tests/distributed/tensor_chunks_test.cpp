// Values that travel between tensor ranks in chunks: no bit depends on their number. What they hide:
// overlap_time_test.cpp.
#include <gtest/gtest.h>

#include "tests/distributed/engine.h"

namespace speedrun::testing {
namespace tensor_chunks_test {

Mode tensor_mode(int tensor, bool sequence) {
    Mode mode{Strategy::zero1, 1, 1, 1, OptimizerKind::adamw, Launch::ready};
    mode.tensor = tensor;
    mode.sequence = sequence;
    mode.heads = 6;
    return mode;
}

std::vector<Mode> modes() {
    std::vector<Mode> modes;
    for (const bool sequence : {false, true}) {
        for (const int tensor : {2, 3}) modes.push_back(tensor_mode(tensor, sequence));
        Mode mode = tensor_mode(2, sequence);
        mode.precision = DType::bf16;
        mode.family = "parts";
        mode.accumulation = 2;
        modes.push_back(mode);
        mode = tensor_mode(2, sequence);
        mode.strategy = Strategy::zero3;
        mode.shard = 2;
        mode.optimizer = OptimizerKind::muon;
        mode.checkpointing = Checkpointing::full;
        modes.push_back(mode);
        mode = tensor_mode(2, sequence);
        mode.family = "gpt2";
        mode.context = 2;
        modes.push_back(mode);
    }
    return modes;
}

// By 7 chunks some have a row more than others.
TEST(TensorChunksTest, ChangeNoBit) {
    for (Mode mode : modes()) {
        if (kSanitized && !mode.sequence) continue;
        const Curve whole = train_ranks(mode);
        for (const int64_t chunks : {7, 2}) {
            if (kSanitized && chunks == 2) continue;
            mode.chunks = chunks;
            SCOPED_TRACE(name_of(mode));
            const Curve curve = train_ranks(mode);
            EXPECT_EQ(curve.losses, whole.losses);
            EXPECT_EQ(curve.norms, whole.norms);
            EXPECT_EQ(curve.masters, whole.masters);
            EXPECT_EQ(curve.bytes_sent, whole.bytes_sent);
        }
    }
}

// Delays at random places find a rank or stream that goes on too early.
TEST(TensorChunksTest, DelaysChangeNoBit) {
    for (const bool sequence : {false, true}) {
        Mode mode = tensor_mode(2, sequence);
        mode.chunks = 3;
        SCOPED_TRACE(name_of(mode));
        const Curve calm = train_ranks(mode), delayed = train_ranks(mode, {.jitter_s = 1e-3, .seed = 5});
        EXPECT_EQ(delayed.losses, calm.losses);
        EXPECT_EQ(delayed.masters, calm.masters);
    }
}

}  // namespace tensor_chunks_test
}  // namespace speedrun::testing
