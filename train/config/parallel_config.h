// Section `parallel`: the mesh of ranks, and how ranks share a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/config/choices.h"
#include "train/fields/field_visitor.h"

namespace speedrun {

// How ranks share a step. Options without a value take the defaults of the strategy (resolve_sharing).
struct Sharing {
    Strategy strategy = Strategy::ddp;
    Launch launch = Launch::ready;
    std::optional<Accumulate> accumulate = {};
    DType reduce_dtype = DType::f32;
    OptimizerStep optimizer_step = OptimizerStep::after_backward;
    std::optional<Reshard> reshard_after_forward = {};
    int64_t bucket_bytes = 0;  // 0: by the number of ranks
    StepOrder step_order = StepOrder::reverse;
    bool sequence = false;  // the tensor axis shards the sequence outside of matrices
};

struct ParallelConfig : Sharing {
    int64_t replicate = 1;
    std::string shard = "auto";
    int64_t context = 1;
    int64_t tensor = 1;
    std::optional<CommunicatorKind> communicator;
    int64_t nccl_max_ctas = 0;
    double timeout_s = 60, start_timeout_s = 600;
    double simulate_latency_us = 0, simulate_gbytes_per_s = 0, simulate_jitter_us = 0;

    bool simulates() const {
        return simulate_latency_us > 0 || simulate_gbytes_per_s > 0 || simulate_jitter_us > 0;
    }
    void fields(FieldVisitor& v) {
        v.choice(
            "strategy", strategy,
            "state that is sharded; ddp: none (but matrices of muon have one owner each); zero1: optimizer state; zero2: gradients "
            "too; zero3: parameters too");
        v.choice("launch", launch,
                 "when a gradient's reduction starts: as soon as it is final, or when backward has ended");
        v.choice(
            "accumulate", accumulate,
            "gradients between microbatches; local: each rank its own, reduced after the last; "
            "reduce_scatter: each microbatch's is reduced and added to the rank's shard; auto: the latter for "
            "zero2 and zero3");
        v.choice("reduce_dtype", reduce_dtype, "type of sent gradients; they are accumulated in f32");
        v.choice(
            "optimizer_step", optimizer_step,
            "in_backward: step each parameter as soon as its gradient is reduced, and use the memory of the gradient again");
        v.choice(
            "reshard_after_forward", reshard_after_forward,
            "zero3: free gathered parameters after forward and gather them again for backward; true, false, "
            "or except_last (auto): all but the parameters that backward reads first");
        v.field(
            "bucket_bytes", bucket_bytes,
            "bytes of f32 gradients per bucket, in the order of backward; 1: one gradient per bucket; 0: half a MiB per rank "
            "(latency times bandwidth), at most 1/16 of all; zero3: one block per bucket",
            {0, 1e12});
        v.retired("coalesce_below_bytes", {.off = "65536", .why = "bucket_bytes is the size of a bucket"});
        v.choice(
            "step_order", step_order,
            "order of updates and gathers of parameters; reverse: as backward completes them; forward: as declared, "
            "to measure the difference. Muon's updates are sent back as declared in both cases");
        v.field("replicate", replicate, "mesh axis: copies of the sharded model", {1, 65536});
        v.field("shard", shard, "mesh axis: ranks that share one copy; \"auto\": the rest of the ranks");
        v.field(
            "context", context,
            "mesh axis: context-parallel ranks; each computes two chunks of every row and gathers keys and values",
            {1, 65536});
        v.retired(
            "context_exchange",
            {.off = "\"gather\"",
             .why =
                 "a ring sends 1.5 times the bytes, and windows leave few keys to send: keys are gathered"});
        v.field(
            "tensor", tensor,
            "mesh axis: tensor-parallel ranks; attention is split by heads, the MLP by hidden units, tables and head by "
            "rows; all ranks of the axis compute the same microbatch",
            {1, 65536});
        v.field(
            "sequence", sequence,
            "sequence parallelism: tensor ranks split the tokens of the microbatch outside of matmuls; same number of bytes "
            "sent, less memory");
        v.retired("tensor_chunks", {.off = "1", .why = "2 and 4 chunks made no step faster than one"});
        v.choice(
            "communicator", communicator,
            "communication between GPUs: NCCL, or staged through host memory, so that ranks may share a GPU; auto: NCCL if it is "
            "installed and each rank has a GPU of its own");
        v.field("nccl_max_ctas", nccl_max_ctas,
                "blocks (CTAs) of a GPU that one of NCCL's collectives may take; 0: as NCCL decides",
                {0, 64});
        v.field("timeout_s", timeout_s,
                "seconds without progress after which a rank reports another as lost and ends the run",
                {1, 86400});
        v.field("start_timeout_s", start_timeout_s,
                "timeout in seconds while NCCL connects the ranks, which takes minutes on many hosts",
                {1, 86400});
        v.field("simulate_latency_us", simulate_latency_us,
                "for measurements: additional microseconds of every collective; 0: off", {0, 1e7});
        v.field("simulate_gbytes_per_s", simulate_gbytes_per_s,
                "for measurements: largest rate at which a rank sends, in 1e9 bytes per second; 0: off",
                {0, 1e6});
        v.field(
            "simulate_jitter_us", simulate_jitter_us,
            "for measurements: upper limit of a random delay in microseconds, per rank and collective; 0: off",
            {0, 1e7});
    }
};

}  // namespace speedrun
