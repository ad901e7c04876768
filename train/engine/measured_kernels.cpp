#include "train/engine/measured_kernels.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/device/error.h"
#include "train/config/choices.h"

namespace speedrun {

namespace {

double distance(double a, double b) {
    if (a <= 0 || b <= 0) return a == b ? 0 : std::numeric_limits<double>::infinity();
    return std::abs(std::log(a / b));
}

double number_of(const nlohmann::json& line, const char* key) {
    const auto it = line.find(key);
    return it != line.end() && it->is_number() ? it->get<double>() : 0;
}

std::string text_of(const nlohmann::json& line, const char* key) {
    const auto it = line.find(key);
    return it != line.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

MeasuredKernels::MeasuredKernels(const std::string& path, DType real, KernelChoice choice) : real_(real) {
    std::ifstream file(path);
    if (!file) throw_data("{}: cannot be read", path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (const nlohmann::json report = nlohmann::json::parse(text, nullptr, false);
        report.is_object() && report.contains("ops")) {
        for (const char* key : {"ceilings", "ops"})
            for (const nlohmann::json& record : report.value(key, nlohmann::json::array()))
                take(record, choice);
    } else {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);)
            take(nlohmann::json::parse(line, nullptr, false), choice);
    }
    if (cases_.empty()) throw_data("{}: no operation in {} has passed there", path, name_of(real));
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
