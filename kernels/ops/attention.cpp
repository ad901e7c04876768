#include "kernels/ops/attention.h"

#include <algorithm>

#include "kernels/ops/combine.h"

namespace speedrun {

namespace {

template <class Arguments>
void check_rotary(const Arguments& a) {
    const RotaryOptions& o = a.options;
    const int64_t rows = a.q.rows(), width = o.num_heads * o.head_dim;
    if (o.head_dim <= 0 || o.head_dim % 2 != 0)
        throw_internal("rotary: head_dim {} is not a positive even number", o.head_dim);
    expect_shape(a.q, {rows, width}, "rotary q");
    expect(a.k, a.q.dtype, {rows, width}, "rotary k");
    if (o.normalize) expect(a.rstd, DType::f32, {rows, 2 * o.num_heads}, "rotary rstd");
    if (!o.rotate) return;
    const int64_t positions = a.position.rank == 2 ? a.position.cols() : 1;
    if (positions < 1 || o.num_heads % positions != 0)
        throw_internal("rotary: {} positions of a token for {} heads", positions, o.num_heads);
    if (a.position.rank == 2) {
        expect(a.position, DType::i32, {rows, positions}, "rotary position");
    } else {
        expect(a.position, DType::i32, {rows}, "rotary position");
    }
    if (!a.position.contiguous()) throw_internal("rotary: position is not contiguous");
    expect(a.cos, DType::f32, {a.cos.rows(), o.head_dim / 2}, "rotary cos");
    expect(a.sin, DType::f32, {a.cos.rows(), o.head_dim / 2}, "rotary sin");
    if (!a.cos.contiguous() || !a.sin.contiguous())
        throw_internal("rotary: cos and sin have to be contiguous");
}

// Checks operands of rotary in other memory than its results.
void check_separate(const Tensor& from_q, const Tensor& from_k, const Tensor& like, const RotaryOptions& o) {
    if (from_q.present() != from_k.present())
        throw_internal("rotary: one of q and k has an operand in other memory: both or neither");
    if (!from_q.present()) return;
    if (!o.normalize && !o.rotate) throw_internal("rotary: operands in other memory would not be written");
    for (const Tensor& from : {from_q, from_k})
        expect(from, like.dtype, {like.rows(), like.cols()}, "rotary operand");
}

void check_key_offset(const Tensor& to, const Tensor& from, const KeyOffsetOptions& o) {
    if (o.head_dim <= 0 || o.head_dim % 2 != 0 || o.rotated_pairs < 0 || o.rotated_pairs > o.head_dim / 2)
        throw_internal("offset_keys: {} turning pairs of a head of {}", o.rotated_pairs, o.head_dim);
    if (o.sequence_length <= 0 || from.rows() % o.sequence_length != 0)
        throw_internal("offset_keys: {} rows are not a multiple of the sequence length {}", from.rows(),
                       o.sequence_length);
    expect_shape(from, {from.rows(), o.num_heads * o.head_dim}, "offset_keys operand");
    expect(to, from.dtype, {from.rows(), from.cols()}, "offset_keys result");
    if (same_memory(to, from)) throw_internal("offset_keys: {} is its own operand", to.describe());
}

// Operands of the shape of q, k, o and v; all have the dtype of q.
struct AttentionOperands {
    std::initializer_list<Tensor> like_q, like_k, like_o, like_v;
};
template <class Arguments>
void check_attention(const Arguments& a, const AttentionOperands& operands) {
    const AttentionOptions& o = a.options;
    const int64_t rows = a.q.rows(), keys = a.place.present() ? a.k.rows() : rows;
    if (o.sequence_length <= 0 || keys % o.sequence_length != 0) {
        throw_internal("attention: {} rows are not a multiple of the sequence length {}", keys,
                       o.sequence_length);
    }
    if (const int64_t sequences = keys / o.sequence_length;
        sequences > 0 ? rows == 0 || rows % sequences != 0 : rows > 0)
        throw_internal("attention: {} queries are not a multiple of {} sequences", rows, sequences);
    expect_shape(a.q, {rows, o.num_heads * o.head_dim}, "attention q");
    expect(a.lse, DType::f32, {o.num_heads, rows}, "attention lse");
    expect(a.first_key, DType::i32, {rows}, "attention first_key");
    if (a.place.present()) expect(a.place, DType::i32, {rows}, "attention place");
    if (a.v.cols() == 0 || a.v.cols() % o.num_heads != 0)
        throw_internal("attention: v {} is not cut into {} heads", a.v.describe(), o.num_heads);
    const auto expect_all = [&](const std::initializer_list<Tensor>& tensors, int64_t count, int64_t width) {
        for (const Tensor& tensor : tensors) expect(tensor, a.q.dtype, {count, width}, "attention operand");
    };
    expect_all(operands.like_q, rows, a.q.cols());
    expect_all(operands.like_k, keys, a.q.cols());
    expect_all(operands.like_o, rows, a.v.cols());
    expect_all(operands.like_v, keys, a.v.cols());
}

// Checks forward and backward of exclude_own_value; y: the output or its gradient.
template <class Arguments>
void check_own_value(const Arguments& a, const Tensor& y) {
    const int64_t heads = a.alpha.numel() == 0 ? 0 : a.alpha.rank == 2 ? a.alpha.cols() : a.alpha.numel();
    if (heads <= 0 || y.cols() % heads != 0)
        throw_internal("exclude_own_value: {} is not cut into {} heads", y.describe(), heads);
    expect_shape(y, {y.rows(), y.cols()}, "exclude_own_value y");
    expect(a.o, y.dtype, {y.rows(), y.cols()}, "exclude_own_value o");
    expect(a.v, y.dtype, {y.rows(), y.cols()}, "exclude_own_value v");
    if (a.alpha.rank == 2) return expect(a.alpha, DType::f32, {y.rows(), heads}, "exclude_own_value alpha");
    expect(a.alpha, DType::f32, {heads}, "exclude_own_value alpha");
}

}  // namespace

void op::QkNormRotaryForward::check() const {
    check_rotary(*this);
    check_separate(from_q, from_k, q, options);
    if (!value.mixed.present()) return;
    const int64_t columns = value.v.cols();
    if (columns == 0 || columns % (2 * options.num_heads) != 0)
        throw_internal("value mix: v {} is not cut into {} heads of even width", value.v.describe(),
                       options.num_heads);
    expect(value.v, q.dtype, {q.rows(), columns}, "value mix v");
    expect(value.mixed, q.dtype, {q.rows(), columns}, "value mix mixed");
    expect(value.mix.z, q.dtype, {q.rows(), columns}, "value mix z");
    expect(value.mix.coefficients, DType::f32, {2}, "value mix coefficients");
}

void op::QkNormRotaryBackward::check() const {
    check_rotary(*this);
    expect(dq, q.dtype, {q.rows(), q.cols()}, "rotary dq");
    expect(dk, q.dtype, {q.rows(), q.cols()}, "rotary dk");
    check_separate(from_dq, from_dk, q, options);
}

void op::OffsetKeysForward::check() const {
    check_key_offset(y, x, options);
}

void op::OffsetKeysBackward::check() const {
    check_key_offset(dx, dy, options);
}

void op::AttentionForward::check() const {
    check_attention(*this, {.like_q = {}, .like_k = {k}, .like_o = {o}, .like_v = {v}});
}

void op::AttentionBackward::check() const {
    check_attention(*this, {.like_q = {dq}, .like_k = {k, dk}, .like_o = {o, dout}, .like_v = {v, dv}});
    if (!rotary.present()) return;
    if (place.present()) throw_internal("attention: rotary of inputs with queries at given places");
    rotary_backward().check();
}

op::QkNormRotaryBackward op::AttentionBackward::rotary_backward() const {
    return {.dq = dq,
            .dk = dk,
            .q = q,
            .k = k,
            .rstd = rotary.rstd,
            .cos = rotary.cos,
            .sin = rotary.sin,
            .position = rotary.position,
            .options = {.num_heads = options.num_heads,
                        .head_dim = options.head_dim,
                        .normalize = rotary.normalize,
                        .rotate = rotary.rotate}};
}

void op::ExcludeOwnValueForward::check() const {
    check_own_value(*this, y);
}

void op::ExcludeOwnValueBackward::check() const {
    const int64_t rows = dy.rows(), cols = dy.cols();
    check_own_value(*this, dy);
    expect(d_o, dy.dtype, {rows, cols}, "exclude_own_value d_o");
    expect(dv, dy.dtype, {rows, cols}, "exclude_own_value dv");
    if (alpha.rank == 2) return expect(dalpha, DType::f32, {rows, alpha.cols()}, "exclude_own_value dalpha");
    expect(dalpha, DType::f32, {alpha.numel()}, "exclude_own_value dalpha");
}

bool wgmma_fuses_rotary(HeadWidths widths, DType compute_dtype) {
    return compute_dtype == DType::bf16 && has_wgmma_kernels(widths);
}

int64_t visible_pairs(const AttentionOptions& o, int64_t queries) {
    if (o.visible_pairs > 0) return o.visible_pairs;
    const int64_t window = o.window > 0 ? std::min(o.window, o.sequence_length) : o.sequence_length;
    const int64_t of_sequence = window * (window + 1) / 2 + (o.sequence_length - window) * window;
    return of_sequence * queries / o.sequence_length;
}

}  // namespace speedrun
