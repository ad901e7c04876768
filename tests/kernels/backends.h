// Backends of the kernel tests. Tests see only Device, Stream and Ops. Each program has one backend_*.cpp
// that creates the implementations.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/ops.h"

namespace speedrun::testing {

struct Backend {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;  // declared after the device: destroyed first
};

struct BackendFactory {
    const char* name;
    // num_threads: threads per stream, for backends that have them.
    Backend (*make)(int num_threads, bool dry);
    // Enqueues a host function that may throw.
    void (*submit)(Stream& stream, std::function<void()> work);
};

// All backends that this machine can run.
const std::vector<const BackendFactory*>& backends();
// All backends of backends(), plus one with our kernels for compute capability 9.0.
const std::vector<const BackendFactory*>& wgmma_backends();

inline std::ostream& operator<<(std::ostream& out, const BackendFactory* factory) {
    return out << factory->name;
}

}  // namespace speedrun::testing
