#include "kernels/cuda/early_launch.h"

namespace speedrun {

std::string find_early_launch_fault(CudaDevice& device, Ops& ops) {
    constexpr int64_t kValues = 64;
    try {
        const Buffer values(device, "test of graphs", MemoryCategory::workspace,
                            kValues * int64_t{sizeof(float)});
        const HostBuffer copied(device, values.bytes());
        const auto before = device.create_stream("before"), tested = device.create_stream("graph");
        const auto ready = device.create_event();
        const auto fill = [&](float value) {
            ops.fill({.x = values.tensor(DType::f32, {kValues}), .value = value}, *tested);
        };
        before->record(*ready);
        const auto graph = device.capture_graph(*tested, [&] {
            tested->wait(*ready);
            fill(1);
            device.copy(copied.as<void>(), values.data(), values.bytes(), *tested);
            fill(2);
        });
        if (!graph) return "";  // steps run call by call
        for (int launches = 0; launches < 2; ++launches) {
            before->record(*ready);
            graph->launch(*tested);
            tested->synchronize();
        }
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace speedrun
