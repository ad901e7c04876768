#include "train/engine/measured_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "data/damaged_lines.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/config/choices.h"

namespace speedrun {

namespace {

double distance(double a, double b) {
    if (a <= 0 || b <= 0) return a == b ? 0 : std::numeric_limits<double>::infinity();
    return std::abs(std::log(a / b));
}

constexpr double kMax = 1e18;  // FLOPs, bytes or rates; products of two stay finite

double number_of(const nlohmann::json& line, const char* key) {
    const auto it = line.find(key);
    const double value = it != line.end() && it->is_number() ? it->get<double>() : 0;
    return value >= 1 / kMax && value <= kMax ? value : 0;
}

std::optional<nlohmann::json> parsed(std::string_view text) {
    try {
        return parse_json<nlohmann::json>(text, {.bytes = kMaxFileBytes});
    } catch (const JsonError&) {
        return std::nullopt;
    }
}

std::string text_of(const nlohmann::json& line, const char* key) {
    const auto it = line.find(key);
    return it != line.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// Reads op_bench's shape, "T16384 S512 16x64/128, 256 keys": queries, keys per sequence, heads, widths of a head of q and of v
// (one number if equal), visible keys a query.
AttentionShape attention_of(const std::string& op, const std::string& text) {
    AttentionShape shape;
    if (op.rfind("attention_", 0) != 0) return shape;
    long long queries = 0, keys = 0, heads = 0, head_dim = 0, value_dim = 0, visible = 0;
    constexpr long long kLargest = 1 << 22;
    if (std::sscanf(text.c_str(), "T%10lld S%10lld %10lldx%10lld/%10lld, %10lld keys", &queries, &keys,
                    &heads, &head_dim, &value_dim, &visible) != 6) {
        if (std::sscanf(text.c_str(), "T%10lld S%10lld %10lldx%10lld, %10lld keys", &queries, &keys, &heads,
                        &head_dim, &visible) != 5)
            return shape;
        value_dim = head_dim;
    }
    const auto sizes = {queries, keys, heads, head_dim, value_dim};
    if (std::min(sizes) < 1 || std::max(sizes) > kLargest) return shape;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    if (queries % keys != 0 || visible != (keys + 1) / 2)
        return shape;  // keys are hidden, or a rank's queries
    return {queries / keys, keys, keys, heads, head_dim, value_dim, 0, false};
}

// Reads op_bench's names: "pointwise.recipe.cross_entropy_3_targets_fp8". The recipe's loss has a softcap.
LossShape loss_of(const std::string& op, const std::string& text) {
    if (op != "cross_entropy") return {};
    const size_t end = text.rfind("_targets"),
                 begin = end == std::string::npos ? end : text.rfind('_', end - 1);
    const int targets = begin == std::string::npos ? 0 : std::atoi(text.c_str() + begin + 1);
    return {std::max(targets, 1), text.find(".recipe.") != std::string::npos,
            text.find("_fp8") != std::string::npos};
}

// Reads op_bench's names: "product.recipe.up.relu_squared".
op::EpilogueKind epilogue_of(const std::string& op, const std::string& text) {
    const auto ends = [&](std::string_view end) {
        return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
    };
    if (op == "scaled_matmul" && ends(".relu_squared")) return op::EpilogueKind::relu_squared_fp8;
    if ((op == "matmul" || op == "scaled_matmul") && ends(".addend")) return op::EpilogueKind::addend;
    if (op != "matmul") return op::EpilogueKind::none;
    if (ends(".relu_squared_backward")) return op::EpilogueKind::relu_squared_backward;
    return ends(".relu_squared") ? op::EpilogueKind::relu_squared : op::EpilogueKind::none;
}

// Reads op_bench's names: "attention.recipe.rotary.backward".
bool has_rotary(const std::string& op, const std::string& text) {
    return op == "attention_backward" && text.find(".rotary.") != std::string::npos;
}

// Reads op_bench's shape of a weighted sum: "3x32768x768".
int terms_of(const std::string& op, const std::string& text) {
    const bool sums = op.rfind("sum_norm_", 0) == 0 || op.rfind("weighted_sum_", 0) == 0;
    return sums ? std::atoi(text.c_str()) : 0;
}

int differences(const OpCost& a, const OpCost& b) {
    const AttentionShape &left = a.attention, &right = b.attention;
    // Heads outweigh hidden keys: the kernels of other widths differ.
    const int of_attention = 2 * (widths_of(left) != widths_of(right)) + (left.present() != right.present());
    return of_attention + (a.rotary != b.rotary) + (a.loss.targets != b.loss.targets) +
           (a.loss.softcap != b.loss.softcap) + (a.loss.fp8 != b.loss.fp8) + (a.terms != b.terms) +
           (a.product.epilogue != b.product.epilogue);
}

}  // namespace

MeasuredKernels::MeasuredKernels(const std::string& path, DType compute_dtype, KernelChoice choice)
    : compute_dtype_(compute_dtype) {
    const std::string text = read_text_file(path);
    DamagedLines damaged;
    if (const auto report = parsed(text); report && report->is_object() && report->contains("ops")) {
        for (const char* key : {"ceilings", "ops"})
            if (const auto list = report->find(key); list != report->end())
                for (const nlohmann::json& record : *list) take(record, choice);
    } else {
        std::istringstream lines(text);
        int64_t number = 0;
        for (std::string line; std::getline(lines, line);) {
            ++number;
            if (const auto record = parsed(line))
                take(*record, choice);
            else if (!line.empty())
                damaged.add(number);
        }
    }
    if (cases_.empty())
        throw_data("{}: no operation in {} has passed there{}", path, name_of(compute_dtype),
                   damaged.any() ? "; " + damaged.text() : "");
    if (damaged.any()) std::fprintf(stderr, "warning: %s: %s\n", path.c_str(), damaged.text().c_str());
}

void MeasuredKernels::take(const nlohmann::json& record, KernelChoice choice) {
    if (!record.is_object() || text_of(record, "dtype") != name_of(compute_dtype_)) return;
    if (text_of(record, "kind") == "ceilings") {
        flops_per_s_ = std::max(flops_per_s_, number_of(record, "tflops") * 1e12);
        bytes_per_s_ = std::max(bytes_per_s_, number_of(record, "gb_per_s") * 1e9);
    }
    if (text_of(record, "kind") != "op" || text_of(record, "status") != "passed") return;
    Case measured{.name = text_of(record, "name"),
                  .op = text_of(record, "op"),
                  .share_of_bound = number_of(record, "share_of_floor"),
                  .ms = number_of(record, "median_ms")};
    measured.cost.flops = static_cast<int64_t>(number_of(record, "flops"));
    measured.cost.bytes = static_cast<int64_t>(number_of(record, "bytes"));
    measured.cost.attention = attention_of(measured.op, text_of(record, "shape"));
    measured.cost.rotary = has_rotary(measured.op, measured.name);
    measured.cost.loss = loss_of(measured.op, measured.name);
    measured.cost.terms = terms_of(measured.op, text_of(record, "shape"));
    measured.cost.product.epilogue = epilogue_of(measured.op, measured.name);
    if (constexpr std::string_view kMix = "mix_norm_"; measured.op.rfind(kMix, 0) == 0) {
        // The name in reports of versions with a kernel of two terms.
        measured.op = "sum_norm_" + measured.op.substr(kMix.size());
        measured.cost.terms = 2;
    }
    const std::string products = text_of(record, "products");
    if (measured.op == "matmul" && (products == word_of(MatmulKind::native)) != choice.native_matmul) return;
    const bool with_epilogue = measured.cost.product.epilogue != op::EpilogueKind::none;
    if (with_epilogue && (products == word_of(MatmulKind::wgmma)) != choice.wgmma_matmul) return;
    const std::string attention = text_of(record, "attention");
    const bool by_wgmma = attention == word_of(AttentionKind::wgmma);
    if (attention == word_of(AttentionKind::cudnn) || measured.share_of_bound <= 0) return;
    if (measured.op.rfind("attention_", 0) == 0 && by_wgmma != choice.wgmma_attention) return;
    cases_[measured.name] = std::move(measured);
}

const MeasuredKernels::Case* MeasuredKernels::nearest(const OpCost& cost) const {
    const Case* best = nullptr;
    std::pair<int, double> smallest{0, std::numeric_limits<double>::infinity()};
    for (const auto& [name, measured] : cases_) {
        if (measured.op != cost.op) continue;
        const op::EpilogueKind epilogue = measured.cost.product.epilogue;
        if (epilogue != op::EpilogueKind::none && epilogue != cost.product.epilogue) continue;
        if (measured.cost.rotary && !cost.rotary) continue;
        const double away =
            distance(static_cast<double>(measured.cost.flops), static_cast<double>(cost.flops)) +
            distance(static_cast<double>(measured.cost.bytes), static_cast<double>(cost.bytes));
        const std::pair nearness{differences(measured.cost, cost), away};
        if (!std::isfinite(away) || (best && nearness >= smallest)) continue;
        smallest = nearness;
        best = &measured;
    }
    return best;
}

GpuModel MeasuredKernels::with_rates(GpuModel gpu) const {
    if (flops_per_s_ > 0)
        (compute_dtype_ == DType::bf16 ? gpu.bf16_flops_per_s : gpu.f32_flops_per_s) = flops_per_s_;
    if (bytes_per_s_ > 0) gpu.bytes_per_s = bytes_per_s_;
    if (flops_per_s_ > 0 && bytes_per_s_ > 0) gpu.source = "measured, by the report; gaps assumed";
    return gpu;
}

}  // namespace speedrun
