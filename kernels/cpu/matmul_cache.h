// oneDNN matrix products, created once per shape. Works with the v2 (Debian 12) and v3 APIs.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/device/tensor.h"

namespace speedrun {

struct MatmulShape {
    int64_t m, n, k, lda, ldb, ldc;
    DType a, b, c;
    bool transpose_a, transpose_b, bias;
    float beta;  // of c = a b + beta c
    auto operator<=>(const MatmulShape&) const = default;
};

class Matmul {
  public:
    virtual ~Matmul() = default;
    virtual int64_t scratchpad_bytes() const = 0;
    // Runs on the calling thread's OpenMP team; throws what oneDNN throws.
    virtual void run(void* c, void* a, void* b, void* bias, void* scratchpad) const = 0;
};

class MatmulCache {
  public:
    explicit MatmulCache(int num_threads);
    ~MatmulCache();
    // Valid as long as the cache. Called from the enqueuing thread only.
    const Matmul& get(const MatmulShape& shape);

  private:
    const int num_threads_;
    std::map<MatmulShape, std::unique_ptr<Matmul>> primitives_;
};

}  // namespace speedrun
