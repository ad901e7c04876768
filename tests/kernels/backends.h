// The backends that the kernel tests run on. The tests see Device, Stream and Ops alone; backend_*.cpp are
// the places that know what implements them, one for each program.
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
    std::unique_ptr<Ops> ops;  // after the device: goes first
};

struct BackendFactory {
    const char* name;
    // num_threads: of each stream, where the backend has such a thing.
    Backend (*make)(int num_threads, bool dry);
    // Enqueues a host function that may throw.
    void (*submit)(Stream& stream, std::function<void()> work);
};

// All backends that this machine can run.
const std::vector<const BackendFactory*>& backends();
// The same, and those that differ in attention alone.
const std::vector<const BackendFactory*>& attention_backends();

inline std::ostream& operator<<(std::ostream& out, const BackendFactory* factory) {
    return out << factory->name;
}

}  // namespace speedrun::testing
