#include "train/records/hardware_class.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Records of 2026-11-21 have the list of instructions, later ones the level that runs used.
std::string level_of(const Json& cpu) {
    if (const std::string isa = cpu.value("isa", ""); !isa.empty()) return isa;
    if (cpu.value("avx512_bf16", false)) return "avx512_bf16";
    if (cpu.value("avx512", false)) return "avx512";
    return cpu.contains("avx512") ? "avx2" : "";
}

HardwareClass class_of(const Json& hardware) {
    HardwareClass result;
    const Json gpus = hardware.value("gpus", Json::array());
    const Json ranks = hardware.value("ranks", Json::array());
    std::map<std::string, size_t> on_gpu;  // host -> number of its ranks with a GPU
    for (const Json& rank : ranks) {
        size_t& count = on_gpu[rank.value("host", "")];
        const std::string device = rank.value("device", "");
        for (const Json& gpu : gpus) {
            const std::string name = gpu.value("name", "");
            if (name.empty() || !device.ends_with(" on " + name)) continue;
            ++count;
            if (result.gpu.empty()) result.gpu = name;
            break;
        }
    }
    // Ranks that exceed a host's GPUs share them.
    for (const auto& [host, count] : on_gpu)
        result.gpus += static_cast<int64_t>(std::min(count, gpus.size()));
    result.hosts = std::max<int64_t>(1, static_cast<int64_t>(on_gpu.size()));
    if (result.gpus > 0) return result;
    const Json cpu = hardware.value("cpu", Json::object());
    result.cores = whole_number(cpu.value("cores", Json(0)));
    result.level = level_of(cpu);
    return result;
}

}  // namespace

std::string HardwareClass::text() const {
    const std::string where = hosts > 1 ? fmt::format("{} hosts of ", hosts) : "";
    if (gpus > 0)
        return fmt::format("{} x {}{}", gpus, gpu, hosts > 1 ? fmt::format(" on {} hosts", hosts) : "");
    return fmt::format("{}{} cores{}{}", where, cores, level.empty() ? "" : ", ", level);
}

std::string hardware_of(const std::string& environment) {
    const Json from = parse_json<Json>(environment);
    Json hardware;
    for (const char* key : {"host", "os", "ranks", "memory_bytes"}) hardware[key] = from.value(key, Json());
    hardware["cpu"] = from.value("cpu", Json::object());
    hardware["cpu"].erase("mhz");
    hardware["gpus"] = from.value("cuda", Json::object()).value("gpus", Json::array());
    return hardware.dump();
}

HardwareClass hardware_class_of(const std::string& hardware) {
    try {
        return class_of(parse_json<Json>(hardware));
    } catch (const std::exception& error) {
        throw_data("hardware: {}", error.what());
    }
}

}  // namespace speedrun
