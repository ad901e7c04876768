#include "kernels/ops/loss.h"

#include <algorithm>

namespace speedrun {

namespace {

void check_targets(const Tensor& targets, const Tensor& weights, int64_t rows) {
    if (!weights.present()) return expect(targets, DType::i32, {rows}, "cross_entropy targets");
    const int64_t count = weights.numel();
    if (count > op::CrossEntropy::kMaxTargets)
        throw_internal("cross_entropy: {} targets a row, at most {}", count, op::CrossEntropy::kMaxTargets);
    expect(weights, DType::f32, {count}, "cross_entropy weights");
    expect(targets, DType::i32, {count, rows}, "cross_entropy targets");
}

template <class Arguments>
void check_part(const Arguments& a, int64_t cols) {
    if (a.vocab_size < 0 || a.vocab_size > cols || a.first < 0 ||
        (a.vocab_size > 0 && a.first + a.vocab_size > a.whole_vocab_size)) {
        throw_internal("cross_entropy: {} ids from {} on, of {}, do not fit {} logits", a.vocab_size, a.first,
                       a.whole_vocab_size, cols);
    }
}

// dlogits has the dtype of the logits or, with a scale, e5m2.
template <class Arguments>
void check_dlogits(const Arguments& a, int64_t rows, int64_t cols) {
    const bool scaled = a.scale.present();
    expect(a.dlogits, scaled ? DType::e5m2 : a.logits.dtype, {rows, cols}, "cross_entropy dlogits");
    if (!scaled) return;
    expect(a.scale, DType::f32, {1}, "cross_entropy scale");
    expect(a.transposed, DType::e5m2, {cols, rows}, "cross_entropy transposed");
    constexpr int64_t kUnit = 16;  // elements; required by op::ScaledMatmul
    for (const Tensor& x : {a.logits, a.dlogits, a.transposed}) {
        if (x.cols() % kUnit != 0 || x.row_stride % kUnit != 0 ||
            reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(kUnit) != 0)
            throw_internal(
                "cross_entropy: rows of {} ({} apart) are not in units of {}, as dlogits in 8 bits need",
                x.describe(), x.row_stride, kUnit);
    }
    if (std::max(rows, cols) > INT32_MAX)
        throw_internal("cross_entropy: {} is too large for dlogits in 8 bits", a.logits.describe());
}

void check_pairs(const Tensor& pairs, int64_t count, const char* name) {
    expect(pairs, DType::f32, {count, 2}, name);
    if (!pairs.contiguous()) throw_internal("{} {} is not contiguous", name, pairs.describe());
}

}  // namespace

void op::CrossEntropy::check() const {
    const int64_t rows = logits.rows(), cols = logits.cols();
    expect(losses, DType::f32, {rows}, "cross_entropy losses");
    check_targets(targets, weights, rows);
    if (dlogits.present()) check_dlogits(*this, rows, cols);
    if (vocab_size <= 0 || vocab_size > cols) {
        throw_internal("cross_entropy: vocabulary of {} does not fit {} logits", vocab_size, cols);
    }
}

void op::CrossEntropyPart::check() const {
    const int64_t rows = logits.rows();
    check_targets(targets, weights, rows);
    check_part(*this, logits.cols());
    check_pairs(part, rows, "cross_entropy part");
}

void op::CrossEntropyOfParts::check() const {
    const int64_t rows = logits.present() ? logits.rows() : losses.numel(), pairs = parts.rows();
    expect(losses, DType::f32, {rows}, "cross_entropy losses");
    check_targets(targets, weights, rows);
    if (pairs < rows || (rows > 0 && pairs % rows != 0))
        throw_internal("cross_entropy: parts {} are not one or several of {} rows", parts.describe(), rows);
    check_pairs(parts, pairs, "cross_entropy parts");
    if (!dlogits.present()) return;
    expect_shape(logits, {rows, logits.cols()}, "cross_entropy logits");
    check_dlogits(*this, rows, logits.cols());
    check_part(*this, logits.cols());
}

}  // namespace speedrun
