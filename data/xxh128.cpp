#include "data/xxh128.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "data/dataset.h"
#include "kernels/device/error.h"

namespace speedrun {

struct Xxh128::State {
    XXH3_state_t xxh3;
};

Xxh128::Xxh128() : state_(std::make_unique<State>()) {
    if (XXH3_128bits_reset(&state_->xxh3) != XXH_OK) throw_internal("XXH128 failed to begin");
}

Xxh128::~Xxh128() = default;

void Xxh128::update(const void* data, size_t bytes) {
    if (XXH3_128bits_update(&state_->xxh3, data, bytes) != XXH_OK) throw_internal("XXH128 failed");
}

std::string Xxh128::hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string xxh128_file(const std::string& path) {
    Xxh128 hash;
    read_in_pieces(path, [&](const void* data, size_t bytes) { hash.update(data, bytes); });
    return hash.hex();
}

}  // namespace speedrun
