#include "tests/bench/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "train/config/choices.h"

namespace speedrun::bench {

namespace {

std::string milliseconds(double ms) {
    return ms < 0.1 ? fmt::format("{:.1f} us", ms * 1e3) : fmt::format("{:.3f} ms", ms);
}

}  // namespace

Report::Report(std::string path, std::string scale, DType compute_dtype, CudaLibraries libraries)
    : path_(std::move(path)), scale_(std::move(scale)), compute_dtype_(compute_dtype), libraries_(libraries) {
    append("");
}

void Report::append(const std::string& line) {
    if (path_.empty()) return;
    std::ofstream file(path_, std::ios::app);
    file << line << std::flush;
    if (!file) throw_data("{}: cannot be written to", path_);
}

void Report::header(const Backend& backend, const BackendPeaks& peaks, const std::string& warning) {
    nlohmann::ordered_json json = {{"kind", "ceilings"},
                                   {"device", backend.description},
                                   {"scale", scale_},
                                   {"dtype", name_of(compute_dtype_)},
                                   {"products", word_of(libraries_.products)},
                                   {"attention", word_of(libraries_.attention)},
                                   {"gb_per_s", peaks.bytes_per_s / 1e9},
                                   {"copy_by", peaks.copy_by},
                                   {"tflops", peaks.flops_per_s / 1e12},
                                   {"product_by", peaks.product_by},
                                   {"library_product", peaks.library_product}};
    if (!warning.empty()) json["warning"] = warning;
    append(json.dump() + "\n");
    fmt::print("device: {}\nceilings: {:.1f} GB/s ({}), {:.3f} TFLOP/s ({})\n", backend.description.dump(),
               peaks.bytes_per_s / 1e9, peaks.copy_by, peaks.flops_per_s / 1e12, peaks.product_by);
    if (!peaks.library_product)
        fmt::print("note: the product ceiling is our own kernel's; shares of compute-bound floors flatter\n");
    if (!warning.empty()) fmt::print("warning: {}\n", warning);
    fmt::print("{:<44}{:>22}{:>11}{:>9}{:>8}{:>11}{:>7}  published\n", "case", "shape", "median", "TFLOP/s",
               "GB/s", "floor", "share");
    std::fflush(stdout);
}

void Report::result(const Case& c, const Measurement& m, const Peaks& peaks) {
    nlohmann::ordered_json json = {{"kind", "op"},
                                   {"name", c.name},
                                   {"op", c.op},
                                   {"shape", c.shape},
                                   {"dtype", name_of(compute_dtype_)},
                                   {"status", m.failure.empty() ? "passed" : "failed"}};
    json["products"] = word_of(libraries_.products);
    json["attention"] = word_of(libraries_.attention);
    if (!m.failure.empty()) {
        json["failure"] = m.failure;
        append(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
        fmt::print("{:<44}FAILED: {}\n", c.name, m.failure);
        std::fflush(stdout);
        return;
    }
    const RooflineBound bound = roofline_bound(c.flops, static_cast<double>(m.bytes), peaks);
    const double seconds = m.timing.median_ms / 1e3, share = bound.ms / m.timing.median_ms;
    const double tflops = c.flops / seconds / 1e12, gb_per_s = static_cast<double>(m.bytes) / seconds / 1e9;
    json.update({{"n", m.timing.repetitions},
                 {"sets", m.sets},
                 {"median_ms", m.timing.median_ms},
                 {"min_ms", m.timing.min_ms},
                 {"p90_ms", m.timing.p90_ms},
                 {"flops", c.flops},
                 {"bytes", m.bytes},
                 {"tflops", tflops},
                 {"gb_per_s", gb_per_s},
                 {"floor_ms", bound.ms},
                 {"bound", bound.compute_bound ? "compute" : "memory"},
                 {"share_of_floor", share}});
    std::string expectations;
    json["published"] = nlohmann::ordered_json::array();
    for (const Published& published : c.published) {
        const double ms = expected_ms(published, c.flops, bound);
        nlohmann::ordered_json entry = {{"source", published.source}, {"ms", ms}};
        if (published.tflops > 0) entry["tflops"] = published.tflops;
        json["published"].push_back(entry);
        expectations += fmt::format("  {} {}", published.source, milliseconds(ms));
    }
    append(json.dump() + "\n");
    fmt::print("{:<44}{:>22}{:>11}{:>9.3g}{:>8.0f}{:>11}{:>6.0f}%{}\n", c.name, c.shape,
               milliseconds(m.timing.median_ms), tflops, gb_per_s, milliseconds(bound.ms), share * 100,
               expectations);
    std::fflush(stdout);
}

}  // namespace speedrun::bench
