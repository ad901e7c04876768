#include "train/engine/measured_kernels.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

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

MeasuredKernels::MeasuredKernels(const std::string& path, DType real, bool hand_products) : real_(real) {
    std::ifstream file(path);
    if (!file) throw_data("{}: cannot be read", path);
    for (std::string text; std::getline(file, text);) {
        const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
        if (!line.is_object() || text_of(line, "dtype") != name_of(real)) continue;
        if (text_of(line, "kind") == "ceilings") {
            flops_per_s_ = std::max(flops_per_s_, number_of(line, "tflops") * 1e12);
            bytes_per_s_ = std::max(bytes_per_s_, number_of(line, "gb_per_s") * 1e9);
        }
        if (text_of(line, "kind") != "op" || text_of(line, "status") != "passed") continue;
        Case measured{.name = text_of(line, "name"),
                      .op = text_of(line, "op"),
                      .flops = number_of(line, "flops"),
                      .bytes = number_of(line, "bytes"),
                      .share_of_floor = number_of(line, "share_of_floor")};
        const bool by_hand = text_of(line, "products") == word_of(Products::hand);
        if (measured.op == "matmul" && by_hand != hand_products) continue;
        if (text_of(line, "attention") == word_of(AttentionKind::cudnn) || measured.share_of_floor <= 0)
            continue;
        cases_[measured.name] = std::move(measured);
    }
    if (cases_.empty()) throw_data("{}: no operation in {} has passed there", path, name_of(real));
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
