#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/device/device.h"

namespace speedrun {

namespace {

constexpr int64_t kDryAlignment = 2 << 20;  // no device aligns buffers to more

}  // namespace

void* Device::reserve_addresses(int64_t bytes) {
    if (bytes == 0) return nullptr;
    const uintptr_t address = next_address_;
    next_address_ += static_cast<uintptr_t>((bytes + kDryAlignment - 1) / kDryAlignment * kDryAlignment);
    return reinterpret_cast<void*>(address);
}

Buffer::Buffer(Device& device, std::string name, MemoryCategory category, int64_t bytes)
    : device_(&device), name_(std::move(name)), category_(category), bytes_(bytes) {
    if (bytes < 0) throw_internal("buffer {}: negative size {}", name_, bytes);
    data_ = device.dry() ? device.reserve_addresses(bytes) : device.allocate(bytes);
    device.memory().add(name_, category_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept {
    *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    release();
    device_ = std::exchange(other.device_, nullptr);
    name_ = std::move(other.name_);
    category_ = other.category_;
    bytes_ = std::exchange(other.bytes_, 0);
    data_ = std::exchange(other.data_, nullptr);
    return *this;
}

Buffer::~Buffer() {
    release();
}

void Buffer::release() noexcept {
    if (!device_) return;
    device_->memory().remove(name_, category_, bytes_);
    if (!device_->dry()) device_->release(data_, bytes_);
    device_ = nullptr;
    data_ = nullptr;
}

Tensor Buffer::tensor(DType dtype, std::initializer_list<int64_t> dims, int64_t byte_offset) const {
    Tensor view(data_ ? static_cast<char*>(data_) + byte_offset : nullptr, dtype, dims);
    if (byte_offset < 0 || byte_offset + view.bytes() > bytes_) {
        throw_internal("{} at byte {} does not fit buffer {} of {} bytes", view.describe(), byte_offset,
                       name_, bytes_);
    }
    return view;
}

HostBuffer::HostBuffer(Device& device, int64_t bytes) : device_(&device), bytes_(bytes) {
    if (bytes < 0) throw_internal("host buffer: negative size {}", bytes);
    if (bytes == 0) return;
    data_ = device.allocate_host(bytes);
    std::memset(data_, 0, static_cast<size_t>(bytes));
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept {
    *this = std::move(other);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
    if (this == &other) return *this;
    if (data_) device_->release_host(data_);
    device_ = std::exchange(other.device_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    data_ = std::exchange(other.data_, nullptr);
    return *this;
}

HostBuffer::~HostBuffer() {
    if (data_) device_->release_host(data_);
}

void* Device::allocate_host(int64_t bytes) {
    constexpr size_t kAlignment = 64;
    void* data = nullptr;
    if (posix_memalign(&data, kAlignment, static_cast<size_t>(bytes)) != 0) {
        throw_usage("out of memory: {:.1f} MiB more do not fit", static_cast<double>(bytes) / (1 << 20));
    }
    return data;
}

void Device::release_host(void* data) noexcept {
    std::free(data);
}

}  // namespace speedrun
