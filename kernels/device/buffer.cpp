#include <utility>

#include "kernels/device/device.h"

namespace speedrun {

Buffer::Buffer(Device& device, std::string name, MemoryCategory category, int64_t bytes)
    : device_(&device), name_(std::move(name)), category_(category), bytes_(bytes) {
    if (bytes < 0) throw_internal("buffer {}: negative size {}", name_, bytes);
    data_ = device.allocate(bytes);
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
    device_->release(data_, bytes_);
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

}  // namespace speedrun
