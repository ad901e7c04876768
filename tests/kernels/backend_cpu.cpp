#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "tests/kernels/backends.h"

namespace speedrun::testing {

namespace {

template <Isa kIsa>
Backend make_cpu(int num_threads, bool dry) {
    auto device = std::make_unique<CpuDevice>(num_threads, dry);
    auto ops = make_cpu_ops(*device, kIsa);
    return {std::move(device), std::move(ops)};
}

void submit_cpu(Stream& stream, std::function<void()> work) {
    static_cast<CpuStream&>(stream).submit("test", std::move(work));
}

template <Isa kIsa>
constexpr BackendFactory kCpu{name_of(kIsa), make_cpu<kIsa>, submit_cpu};

const BackendFactory* factory(Isa isa) {
    switch (isa) {
        case Isa::avx2:
            return &kCpu<Isa::avx2>;
        case Isa::avx512:
            return &kCpu<Isa::avx512>;
        case Isa::avx512_bf16:
            return &kCpu<Isa::avx512_bf16>;
        case Isa::amx_bf16:
            return &kCpu<Isa::amx_bf16>;
    }
    return nullptr;
}

}  // namespace

// One backend per instruction level of this processor.
const std::vector<const BackendFactory*>& backends() {
    static const std::vector<const BackendFactory*> all = [] {
        std::vector<const BackendFactory*> factories;
        for (const Isa isa : usable_isas()) factories.push_back(factory(isa));
        return factories;
    }();
    return all;
}

const std::vector<const BackendFactory*>& wgmma_backends() {
    return backends();
}

}  // namespace speedrun::testing
