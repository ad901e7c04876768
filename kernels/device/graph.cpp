#include "kernels/device/device.h"

namespace speedrun {

std::unique_ptr<Graph> Device::end_graph(Stream& stream) {
    throw_internal("stream {} captures no graph", stream.name());
}

std::unique_ptr<Graph> Device::capture_graph(Stream& stream, const std::function<void()>& body) {
    if (!begin_graph(stream)) return nullptr;
    try {
        body();
    } catch (...) {
        try {
            end_graph(stream);
        } catch (const Error&) {  // report the first error
        }
        throw;
    }
    return end_graph(stream);
}

}  // namespace speedrun
