#include "tests/bench/case_memory.h"

#include <algorithm>
#include <random>

namespace speedrun::bench {

namespace {

constexpr int64_t kPatternElements = (4 << 20) - 3;  // odd, so that equal rows of a matrix do not repeat soon

// Host values repeated in uploads: drawing billions of them would take longer than the timing.
const std::vector<float>& normal_values(int64_t count) {
    static std::vector<float> values;
    static std::mt19937_64 generator(20251116);
    static std::normal_distribution<float> normal(0.0f, 1.0f);
    while (static_cast<int64_t>(values.size()) < std::min(count, kPatternElements))
        values.push_back(normal(generator));
    return values;
}

}  // namespace

CaseMemory::CaseMemory(Device& device, Ops& ops, Stream& stream, DType compute_dtype)
    : device_(device), ops_(ops), stream_(stream), compute_dtype_(compute_dtype) {}

Tensor CaseMemory::allocate(DType dtype, Dims dims) {
    const int64_t bytes = Tensor(nullptr, dtype, dims).bytes();
    buffers_.emplace_back(device_, "bench", MemoryCategory::activations, bytes);
    footprint_ += bytes;
    return buffers_.back().tensor(dtype, dims);
}

void CaseMemory::upload(const Tensor& tensor, const void* pattern, int64_t pattern_bytes) {
    for (int64_t done = 0; done < tensor.bytes(); done += pattern_bytes) {
        device_.copy(static_cast<char*>(tensor.data) + done, pattern,
                     std::min(pattern_bytes, tensor.bytes() - done), stream_);
    }
    stream_.synchronize();
}

void CaseMemory::upload_random(const Tensor& tensor, float deviation) {
    const std::vector<float>& normal = normal_values(tensor.numel());
    const int64_t count = std::min(tensor.numel(), kPatternElements);
    std::vector<float> f32(normal.begin(), normal.begin() + count);
    // Each tensor starts at another offset: the product of a matrix with itself is not random.
    const auto shift = static_cast<int64_t>(buffers_.size()) * 1000003 % count;
    std::rotate(f32.begin(), f32.begin() + shift, f32.end());
    for (float& value : f32) value *= deviation;
    if (tensor.dtype == DType::f32) return upload(tensor, f32.data(), count * size_of(DType::f32));
    if (is_fp8(tensor.dtype)) {
        std::vector<uint8_t> bits;
        for (float value : f32)
            bits.push_back(tensor.dtype == DType::e4m3 ? E4m3(value).bits : E5m2(value).bits);
        return upload(tensor, bits.data(), count);
    }
    std::vector<Bf16> bf16;
    bf16.reserve(f32.size());
    for (float value : f32) bf16.emplace_back(value);
    upload(tensor, bf16.data(), count * size_of(DType::bf16));
}

Tensor CaseMemory::input(DType dtype, Dims dims, float deviation) {
    const Tensor tensor = allocate(dtype, dims);
    upload_random(tensor, deviation);
    return as_input(tensor);
}

Tensor CaseMemory::inout(DType dtype, Dims dims, float deviation) {
    const Tensor tensor = input(dtype, dims, deviation);
    counted_.written += tensor.bytes();
    results_.push_back(tensor);
    return tensor;
}

Tensor CaseMemory::output(DType dtype, Dims dims) {
    const Tensor tensor = allocate(dtype, dims);
    const std::vector<char> poison(static_cast<size_t>(std::min<int64_t>(tensor.bytes(), 64 << 20)),
                                   static_cast<char>(0xff));  // every element is NaN
    upload(tensor, poison.data(), static_cast<int64_t>(poison.size()));
    counted_.written += tensor.bytes();
    results_.push_back(tensor);
    poisoned_.push_back(tensor);
    return tensor;
}

Tensor CaseMemory::indices(const std::vector<int32_t>& values) {
    const Tensor tensor = allocate(DType::i32, {static_cast<int64_t>(values.size())});
    upload(tensor, values.data(), tensor.bytes());
    return as_input(tensor);
}

Tensor CaseMemory::constant(Dims dims, float value) {
    const Tensor tensor = allocate(DType::f32, dims);
    const std::vector<float> values(static_cast<size_t>(std::min<int64_t>(tensor.numel(), 1 << 20)), value);
    upload(tensor, values.data(), static_cast<int64_t>(values.size()) * size_of(DType::f32));
    return as_input(tensor);
}

Tensor CaseMemory::workspace(DType dtype, Dims dims) {
    return allocate(dtype, dims);
}

Tensor CaseMemory::uncounted_input(DType dtype, Dims dims) {
    const Tensor tensor = allocate(dtype, dims);
    upload_random(tensor, 1.0f);
    return tensor;
}

Tensor CaseMemory::as_input(Tensor tensor) {
    counted_.read += tensor.bytes();
    return tensor;
}

void CaseMemory::setup(const std::function<void(Ops&, Stream&)>& work) {
    work(ops_, stream_);
    stream_.synchronize();
}

void CaseMemory::square(Tensor x) {
    setup([x](Ops& ops, Stream& stream) {
        ops.activation_forward({.y = x, .x = x, .activation = Activation::relu_squared}, stream);
    });
}

}  // namespace speedrun::bench
