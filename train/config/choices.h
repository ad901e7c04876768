// Enumerated options of a config: an enum and a table of words for each. Enums of operations, devices and libraries are in
// kernels/. An optional enum has the word "auto" for no value.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/ops.h"
#include "train/fields/choice.h"

namespace speedrun {

// ---- model

template <>
inline constexpr Word<NormKind> kWords<NormKind>[] = {{"rmsnorm", NormKind::rmsnorm},
                                                      {"layernorm", NormKind::layernorm}};

template <>
inline constexpr Word<Activation> kWords<Activation>[] = {{"relu_squared", Activation::relu_squared},
                                                          {"gelu_tanh", Activation::gelu_tanh},
                                                          {"gelu_erf", Activation::gelu_erf}};

enum class InitKind : uint8_t { constant, normal, uniform };
template <>
inline constexpr Word<InitKind> kWords<InitKind>[] = {
    {"constant", InitKind::constant}, {"normal", InitKind::normal}, {"uniform", InitKind::uniform}};

// ---- data

// Content of a training sequence: consecutive tokens of a shard, or documents from their starts.
enum class RowKind : uint8_t { stream, documents };
template <>
inline constexpr Word<RowKind> kWords<RowKind>[] = {{"stream", RowKind::stream},
                                                    {"documents", RowKind::documents}};

// ---- memory

enum class Checkpointing : uint8_t { none, selective, full };
template <>
inline constexpr Word<Checkpointing> kWords<Checkpointing>[] = {
    {"none", Checkpointing::none}, {"selective", Checkpointing::selective}, {"full", Checkpointing::full}};

// ---- parallel

enum class Strategy : uint8_t { ddp, zero1, zero2, zero3 };
template <>
inline constexpr Word<Strategy> kWords<Strategy>[] = {{"ddp", Strategy::ddp},
                                                      {"zero1", Strategy::zero1},
                                                      {"zero2", Strategy::zero2},
                                                      {"zero3", Strategy::zero3}};

enum class Accumulate : uint8_t { local, reduce_scatter };  // the full gradient, or the rank's shard
template <>
inline constexpr Word<std::optional<Accumulate>> kWords<std::optional<Accumulate>>[] = {
    {"auto", std::nullopt}, {"local", Accumulate::local}, {"reduce_scatter", Accumulate::reduce_scatter}};

enum class Launch : uint8_t { ready, after_backward };
template <>
inline constexpr Word<Launch> kWords<Launch>[] = {{"ready", Launch::ready},
                                                  {"after_backward", Launch::after_backward}};

enum class StepOrder : uint8_t { reverse, forward };  // relative to declaration
template <>
inline constexpr Word<StepOrder> kWords<StepOrder>[] = {{"reverse", StepOrder::reverse},
                                                        {"forward", StepOrder::forward}};

enum class OptimizerStep : uint8_t { after_backward, in_backward };
template <>
inline constexpr Word<OptimizerStep> kWords<OptimizerStep>[] = {
    {"after_backward", OptimizerStep::after_backward}, {"in_backward", OptimizerStep::in_backward}};

// When zero3 frees gathered parameters: at the optimizer step (no), after forward (yes), or after forward except for the
// parameters that backward reads first (except_last).
enum class Reshard : uint8_t { no, yes, except_last };
template <>
inline constexpr Word<std::optional<Reshard>> kWords<std::optional<Reshard>>[] = {
    {"auto", std::nullopt},
    {"true", Reshard::yes},
    {"false", Reshard::no},
    {"except_last", Reshard::except_last}};

enum class CommunicatorKind : uint8_t { nccl, staged };
template <>
inline constexpr Word<std::optional<CommunicatorKind>> kWords<std::optional<CommunicatorKind>>[] = {
    {"auto", std::nullopt}, {"nccl", CommunicatorKind::nccl}, {"staged", CommunicatorKind::staged}};

// ---- device

template <>
inline constexpr Word<std::optional<DeviceKind>> kWords<std::optional<DeviceKind>>[] = {
    {"auto", std::nullopt}, {"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}};

template <>  // compute dtype
inline constexpr Word<std::optional<DType>> kWords<std::optional<DType>>[] = {
    {"auto", std::nullopt}, {"f32", DType::f32}, {"bf16", DType::bf16}};

template <>
inline constexpr Word<MatmulKind> kWords<MatmulKind>[] = {
    {"library", MatmulKind::library}, {"hand", MatmulKind::native}, {"wgmma", MatmulKind::wgmma}};
template <>
inline constexpr Word<AttentionKind> kWords<AttentionKind>[] = {
    {"hand", AttentionKind::native}, {"wgmma", AttentionKind::wgmma}, {"cudnn", AttentionKind::cudnn}};

}  // namespace speedrun
