#include "kernels/ops/epilogue.h"

#include <fmt/format.h>

namespace speedrun {

void op::Epilogue::check(const Tensor& c, const char* name) const {
    const auto operand = [&](const char* field) { return fmt::format("{} epilogue {}", name, field); };
    if (squares.present()) {
        if (relu_squared) throw_internal("{}: relu_squared and squares exclude each other", name);
        expect(squares, c.dtype, {c.rows(), c.cols()}, operand("squares").c_str());
        if (c.data && squares.data == c.data) throw_internal("{}: squares are read after c is written", name);
    }
    if (!quantized.present()) {
        if (scale.present() || amax.present() || constant != 0)
            throw_internal("{}: a scale or amax without quantized", name);
        return;
    }
    if (!relu_squared) throw_internal("{}: quantized without relu_squared", name);
    expect(quantized, DType::e4m3, {c.rows(), c.cols()}, operand("quantized").c_str());
    expect(scale, DType::f32, {1}, operand("scale").c_str());
    if (amax.present()) expect(amax, DType::f32, {1}, operand("amax").c_str());
}

void op::Epilogue::check_addend(const Tensor& addend, const Tensor& c, bool accumulate,
                                const char* name) const {
    if (!addend.present()) return;
    expect(addend, c.dtype, {c.rows(), c.cols()}, fmt::format("{} addend", name).c_str());
    if (accumulate || present()) throw_internal("{}: an addend excludes accumulate and an epilogue", name);
    if (addend.row_stride != c.row_stride)
        throw_internal("{}: the addend {} has not the row stride of c {}", name, addend.describe(),
                       c.describe());
    if (c.data && addend.data == c.data)
        throw_internal("{}: the addend is c, which accumulate adds to", name);
}

}  // namespace speedrun
