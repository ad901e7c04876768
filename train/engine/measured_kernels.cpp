#include "train/engine/measured_kernels.h"

#include <cmath>
#include <cstdio>
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

constexpr double kMost = 1e18;  // FLOPs, bytes or rates; products of two stay finite

double number_of(const nlohmann::json& line, const char* key) {
    const auto it = line.find(key);
    const double value = it != line.end() && it->is_number() ? it->get<double>() : 0;
    return value >= 1 / kMost && value <= kMost ? value : 0;
}

std::optional<nlohmann::json> parsed(std::string_view text) {
    try {
        return parse_json<nlohmann::json>(text, {.bytes = kMostFileBytes});
    } catch (const JsonError&) {
        return std::nullopt;
    }
}

std::string text_of(const nlohmann::json& line, const char* key) {
    const auto it = line.find(key);
    return it != line.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

MeasuredKernels::MeasuredKernels(const std::string& path, DType real, KernelChoice choice) : real_(real) {
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
        throw_data("{}: no operation in {} has passed there{}", path, name_of(real),
                   damaged.any() ? "; " + damaged.text() : "");
    if (damaged.any()) std::fprintf(stderr, "warning: %s: %s\n", path.c_str(), damaged.text().c_str());
}

void MeasuredKernels::take(const nlohmann::json& record, KernelChoice choice) {
    if (!record.is_object() || text_of(record, "dtype") != name_of(real_)) return;
    if (text_of(record, "kind") == "ceilings") {
        flops_per_s_ = std::max(flops_per_s_, number_of(record, "tflops") * 1e12);
        bytes_per_s_ = std::max(bytes_per_s_, number_of(record, "gb_per_s") * 1e9);
    }
    if (text_of(record, "kind") != "op" || text_of(record, "status") != "passed") return;
    Case measured{.name = text_of(record, "name"),
                  .op = text_of(record, "op"),
                  .flops = number_of(record, "flops"),
                  .bytes = number_of(record, "bytes"),
                  .share_of_floor = number_of(record, "share_of_floor")};
    const bool by_hand = text_of(record, "products") == word_of(Products::hand);
    if (measured.op == "matmul" && by_hand != choice.hand_products) return;
    const std::string attention = text_of(record, "attention");
    const bool by_wgmma = attention == word_of(AttentionKind::wgmma);
    if (attention == word_of(AttentionKind::cudnn) || measured.share_of_floor <= 0) return;
    if (measured.op.rfind("attention_", 0) == 0 && by_wgmma != choice.wgmma_attention) return;
    cases_[measured.name] = std::move(measured);
}

const MeasuredKernels::Case* MeasuredKernels::nearest(const OpCost& cost) const {
    const Case* best = nullptr;
    double smallest = std::numeric_limits<double>::infinity();
    for (const auto& [name, measured] : cases_) {
        if (measured.op != cost.op) continue;
        const double away = distance(measured.flops, static_cast<double>(cost.flops)) +
                            distance(measured.bytes, static_cast<double>(cost.bytes));
        if (away >= smallest) continue;
        smallest = away;
        best = &measured;
    }
    return best;
}

GpuModel MeasuredKernels::with_rates(GpuModel gpu) const {
    if (flops_per_s_ > 0) (real_ == DType::bf16 ? gpu.bf16_flops_per_s : gpu.f32_flops_per_s) = flops_per_s_;
    if (bytes_per_s_ > 0) gpu.bytes_per_s = bytes_per_s_;
    if (flops_per_s_ > 0 && bytes_per_s_ > 0) gpu.source = "measured, by the report; gaps assumed";
    return gpu;
}

}  // namespace speedrun
