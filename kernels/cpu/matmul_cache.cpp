#include "kernels/cpu/matmul_cache.h"

#include <dnnl.hpp>
#include <mutex>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/library_threads.h"

namespace speedrun {

namespace {

using dnnl::memory;

dnnl::engine& cpu_engine() {
    static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    return engine;
}

memory::data_type type_of(DType dtype) {
    return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// A rows x cols operand, stored transposed or not, with this many elements from one stored row to the next.
memory::desc describe(int64_t rows, int64_t cols, int64_t stride, bool transposed, DType dtype) {
    const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
    return {{rows, cols}, type_of(dtype), strides};
}

class OneDnnMatmul final : public Matmul {
  public:
    explicit OneDnnMatmul(const MatmulShape& s)
        : a_(describe(s.m, s.k, s.lda, s.transpose_a, s.a)),
          b_(describe(s.k, s.n, s.ldb, s.transpose_b, s.b)),
          c_(describe(s.m, s.n, s.ldc, false, s.c)) {
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        if (s.beta != 0.0f) {
            dnnl::post_ops post_ops;
            post_ops.append_sum(s.beta);
            attributes.set_post_ops(post_ops);
        }
        if (s.bias) bias_ = memory::desc({1, s.n}, memory::data_type::f32, memory::dims{s.n, 1});
#if DNNL_VERSION_MAJOR >= 3
        const auto primitive = s.bias
                                   ? dnnl::matmul::primitive_desc(cpu_engine(), a_, b_, bias_, c_, attributes)
                                   : dnnl::matmul::primitive_desc(cpu_engine(), a_, b_, c_, attributes);
#else
        const auto operation =
            s.bias ? dnnl::matmul::desc(a_, b_, bias_, c_) : dnnl::matmul::desc(a_, b_, c_);
        const dnnl::matmul::primitive_desc primitive(operation, attributes, cpu_engine());
#endif
        scratchpad_ = primitive.scratchpad_desc();
        matmul_ = dnnl::matmul(primitive);
        has_bias_ = s.bias;
    }

    int64_t scratchpad_bytes() const override {
        return static_cast<int64_t>(scratchpad_.get_size());
    }

    void run(void* c, void* a, void* b, void* bias, void* scratchpad) const override {
        thread_local dnnl::stream stream(cpu_engine());
        std::unordered_map<int, memory> arguments = {
            {DNNL_ARG_SRC, memory(a_, cpu_engine(), a)},
            {DNNL_ARG_WEIGHTS, memory(b_, cpu_engine(), b)},
            {DNNL_ARG_DST, memory(c_, cpu_engine(), c)},
        };
        if (has_bias_) arguments.emplace(DNNL_ARG_BIAS, memory(bias_, cpu_engine(), bias));
        if (scratchpad) arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(scratchpad_, cpu_engine(), scratchpad));
        matmul_.execute(stream, arguments);
        stream.wait();
    }

  private:
    memory::desc a_, b_, c_, bias_, scratchpad_;
    dnnl::matmul matmul_;
    bool has_bias_ = false;
};

}  // namespace

MatmulCache::MatmulCache(int num_threads) : num_threads_(num_threads) {}
MatmulCache::~MatmulCache() = default;

const Matmul& MatmulCache::get(const MatmulShape& shape) {
    auto& slot = primitives_[shape];
    if (!slot) {
        // oneDNN plans for the team size of the creating thread; the streams' threads have the same.
        cpu::set_library_threads(num_threads_);
        // oneDNN keeps a cache of its own for all threads; one maker at a time, as ranks may be threads.
        static std::mutex making;
        const std::lock_guard lock(making);
        slot = std::make_unique<OneDnnMatmul>(shape);
    }
    return *slot;
}

std::string cpu_library_version() {
    const dnnl_version_t* v = dnnl_version();
    return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

}  // namespace speedrun
