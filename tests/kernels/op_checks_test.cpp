// Arguments of the operations of a model that do not fit.
#include "tests/kernels/op_checks.h"

namespace speedrun::testing::op_checks_test {

SPEEDRUN_CHECKS_TEST(OpChecksTest);

TEST_P(OpChecksTest, Activation) {
    const Tensor x = real({3, 48});
    refuse(op::ActivationForward{.y = x, .x = real({3, 47}), .activation = Activation::gelu_tanh},
           {"[3,47]", "[3,48]"});
    refuse(
        op::ActivationBackward{
            .dx = x, .dy = real({2, 48}), .saved = x, .activation = Activation::relu_squared},
        {"dy", "[3,48]", "[2,48]"});
}

TEST_P(OpChecksTest, Matmul) {
    const Changed<op::Matmul> refused{{.c = real({7, 33}),
                                       .a = real({7, 48}),
                                       .b = real({33, 48}),
                                       .bias = f32({33}),
                                       .transpose_b = true}};
    refused({"matmul b", "[33,48]", "[33,47]"}, [](auto& m) { m.b = real({33, 47}); });
    refused({"matmul b", "[48,33]", "[33,48]"}, [](auto& m) { m.transpose_b = false; });
    refused({"bias", "[33]", "[32]"}, [](auto& m) { m.bias = f32({32}); });
    refused({"bias", "accumulate"}, [](auto& m) { m.accumulate = true; });
    refused({"f32[", "bf16["}, [](auto& m) {
        m.b = make(GetParam() == DType::f32 ? DType::bf16 : DType::f32, {33, 48});
    });
    const Changed<op::Matmul> epilogue{{.c = real({7, 33}),
                                        .a = real({7, 48}),
                                        .b = real({48, 33}),
                                        .epilogue = {.relu_squared = true,
                                                     .quantized = make(DType::e4m3, {7, 33}),
                                                     .scale = f32({1}),
                                                     .amax = f32({1})}}};
    epilogue({"epilogue", "accumulate"}, [](auto& m) { m.accumulate = true; });
    epilogue({"relu_squared and squares"}, [](auto& m) { m.epilogue.squares = real({7, 33}); });
    epilogue({"quantized without relu_squared"}, [](auto& m) { m.epilogue.relu_squared = false; });
    epilogue({"matmul epilogue quantized", "expected e4m3", "e5m2[7,33]"}, [](auto& m) {
        m.epilogue.quantized = make(DType::e5m2, {7, 33});
    });
    epilogue({"matmul epilogue scale", "f32[1]"}, [](auto& m) { m.epilogue.scale = {}; });
    epilogue({"matmul epilogue amax", "[1]", "[2]"}, [](auto& m) { m.epilogue.amax = f32({2}); });
    epilogue({"without quantized"}, [](auto& m) { m.epilogue.quantized = {}; });
    if (GetParam() == DType::bf16)
        epilogue({"an epilogue", "f32[7,33]"}, [](auto& m) {
            m.c = f32({7, 33}), m.epilogue.quantized = {};
        });
    const Changed<op::Matmul> backward{{.c = real({7, 33}),
                                        .a = real({7, 48}),
                                        .b = real({48, 33}),
                                        .epilogue = {.squares = real({7, 33})}}};
    backward({"matmul epilogue squares", "[7,33]", "[7,32]"}, [](auto& m) {
        m.epilogue.squares = real({7, 32});
    });
    backward({"squares are read after c"}, [](auto& m) { m.epilogue.squares = m.c; });
    const Changed<op::Matmul> added{
        {.c = real({7, 33}), .a = real({7, 48}), .b = real({48, 33}), .addend = real({7, 33})}};
    added({"matmul addend", "[7,33]", "[7,32]"}, [](auto& m) { m.addend = real({7, 32}); });
    added({"addend excludes"}, [](auto& m) { m.accumulate = true; });
    added({"addend excludes"}, [](auto& m) { m.epilogue.relu_squared = true; });
    added({"addend", "rows 64 apart", "row stride of c"}, [](auto& m) { m.addend.row_stride = 64; });
    added({"the addend is c"}, [](auto& m) { m.addend = m.c; });
    refuse(op::ColumnSum{.out = f32({47}), .x = real({3, 48}), .accumulate = false}, {"[48]", "[47]"});
}

TEST_P(OpChecksTest, Fp8) {
    const Changed<op::ScaledMatmul> product{{.c = real({16, 32}),
                                             .a = make(DType::e4m3, {16, 32}),
                                             .b = make(DType::e4m3, {32, 32}),
                                             .scale_a = f32({1}),
                                             .scale_b = f32({1})}};
    product({"types do not fit", "e5m2[16,32]"}, [](auto& m) {
        m.a = make(DType::e5m2, {16, 32}), m.b = make(DType::e5m2, {32, 32});
    });
    product({"types do not fit", "bf16[16,32]"}, [](auto& m) { m.a = make(DType::bf16, {16, 32}); });
    product({"accumulate and an epilogue"}, [](auto& m) { m.accumulate = m.epilogue.relu_squared = true; });
    product({"scaled_matmul epilogue squares", "[16,31]"}, [](auto& m) {
        m.epilogue.squares = real({16, 31});
    });
    product({"scaled_matmul addend", "[16,31]"}, [](auto& m) { m.addend = real({16, 31}); });
    product({"scaled_matmul: an addend excludes"}, [](auto& m) {
        m.addend = real({16, 32}), m.accumulate = true;
    });
    product({"scaled_matmul: the addend is c"}, [](auto& m) { m.addend = m.c; });
    product({"e4m3[16,24]", "multiples of 16"}, [](auto& m) {
        m.a = make(DType::e4m3, {16, 24}), m.b = make(DType::e4m3, {32, 24});
    });
    const Changed<op::Quantize> quantize{
        {.out = make(DType::e4m3, {16, 32}), .x = real({16, 32}), .scale = f32({1})}};
    quantize({"quantize transposed", "e4m3[16,32]"}, [](auto& q) {
        q.transposed = make(DType::e4m3, {16, 32});
    });
    refuse(op::RenewScales{.scales = f32({3}), .amax = f32({2}), .factors = f32({3})},
           {"renew_scales amax", "f32[2]"});
}

TEST_P(OpChecksTest, Embedding) {
    const Changed<op::EmbeddingForward> forward{
        {.out = real({5, 48}), .index = i32({5}), .table = real({9, 48})}};
    forward({"index", "5", "4"}, [](auto& a) { a.index = i32({4}); });
    forward({"table", "48", "32"}, [](auto& a) { a.table = real({9, 32}); });
    forward({"signs.bits", "i32[3,2]", "i32[3,1]"}, [](auto& a) {
        a.signs = {.bits = i32({3, 1}), .row = i32({5})};
    });
    const Changed<op::EmbeddingBackward> backward{
        {.dtable = f32({9, 48}), .order = i32({2, 5}), .dout = real({5, 48}), .accumulate = false}};
    backward({"dtable", "f32", "bf16[9,48]"}, [](auto& a) { a.dtable = make(DType::bf16, {9, 48}); });
    backward({"order", "i32[2,5]", "i32[5]"}, [](auto& a) { a.order = i32({5}); });
    refuse(op::SortIds{.order = i32({2, 4}), .index = i32({5}), .limit = 9},
           {"order", "i32[2,5]", "i32[2,4]"});
}

TEST_P(OpChecksTest, Norm) {
    const Changed<op::NormForward> forward{
        {.y = real({3, 48}), .rstd = f32({3}), .x = real({3, 48}), .kind = NormKind::rmsnorm}};
    forward({"rstd", "[3]", "[4]"}, [](auto& a) { a.rstd = f32({4}); });
    forward({"sum", "delta"}, [](auto& a) { a.delta = a.x; });
    forward({"amax", "[1]", "[3]"}, [](auto& a) { a.amax = f32({3}); });
    forward({"amax", "not contiguous"}, [](auto& a) {
        a.amax = f32({1});
        a.y = real({3, 49}).column_slice(0, 48);
    });
    const Changed<op::NormBackward> backward{{.ds = real({3, 48}),
                                              .dgain = f32({48}),
                                              .dy = real({3, 48}),
                                              .s = real({3, 48}),
                                              .rstd = f32({3}),
                                              .gain = f32({48}),
                                              .accumulate = false,
                                              .kind = NormKind::rmsnorm}};
    backward({"gain", "[48]", "[47]"}, [](auto& a) { a.gain = f32({47}); });
}

TEST_P(OpChecksTest, SumNorm) {
    const Changed<op::SumNormForward> forward{
        {.y = real({4, 48}),
         .sum = real({4, 48}),
         .rstd = f32({4}),
         .terms = {{{.source = real({4, 48}), .coefficient = f32({1})}, {.source = real({4, 48})}}},
         .sequence_length = 4,
         .x = real({4, 48}),
         .delta = real({4, 48}),
         .kind = NormKind::rmsnorm}};
    forward({"[4,48]", "[4,47]"}, [](auto& a) { a.terms[1].source = real({4, 47}); });
    forward({"coefficient", "[3]"}, [](auto& a) { a.terms[0].coefficient = f32({3}); });
    forward({"sum_norm_forward", "x and delta"}, [](auto& a) { a.x = {}; });
    forward({"add", "[4,48]", "[4,47]"}, [](auto& a) { a.delta = real({4, 47}); });
    forward({"sum_norm_forward", "shifted"}, [](auto& a) { a.terms[0].shifted = true; });
    const Changed<op::SumNormBackward> refused{
        {.gradients =
             {{{.dsource = real({4, 48}), .accumulate_source = false, .accumulate_coefficient = false}}},
         .dy = real({4, 48}),
         .s = real({4, 48}),
         .terms = {{{.source = real({4, 48}), .coefficient = f32({4, 1})}}},
         .rstd = f32({4}),
         .accumulate = false,
         .kind = NormKind::rmsnorm}};
    refused({"sum_norm_backward", "shifted"}, [](auto& a) { a.terms[0].shifted = true; });
    refused({"sum_norm_backward", "3 heads"}, [](auto& a) { a.terms[0].coefficient = f32({4, 3}); });
    refused({"dsum", "[4,48]", "[4,40]"}, [](auto& a) { a.dsum = real({4, 40}); });
    refused({"dsum is a dsource"}, [](auto& a) { a.dsum = a.gradients[0].dsource; });
}

TEST_P(OpChecksTest, WeightedSum) {
    const Changed<op::WeightedSumForward> forward{
        {.y = real({8, 48}), .terms = {{{.source = real({8, 48})}}}, .sequence_length = 4}};
    const auto coefficient = [&](std::initializer_list<int64_t> dims, const std::vector<std::string>& parts) {
        forward(parts, [&](auto& a) { a.terms[0].coefficient = f32(dims); });
    };
    forward({"weighted_sum", "0 terms"}, [](auto& a) { a.terms = {}; });
    forward({"source", "[8,48]", "[8,40]"}, [](auto& a) { a.terms[0].source = real({8, 40}); });
    forward({"8 rows", "length 3"}, [](auto& a) { a.sequence_length = 3; });
    forward({"8 rows", "length 0"}, [](auto& a) { a.sequence_length = 0; });
    forward({"term 2"}, [](auto& a) { a.terms[2] = a.terms[0]; });
    coefficient({2}, {"coefficient", "[1]", "[2]"});
    coefficient({8, 5}, {"48 columns", "5 coefficients"});
    coefficient({7, 1}, {"coefficient", "[8,1]", "[7,1]"});
    forward({"coefficient", "[8,3]", "[8,2]"}, [](auto& a) {
        a.terms[1] = a.terms[0];
        a.terms[0].coefficient = f32({8, 2});
        a.terms[1].coefficient = f32({8, 3});
    });
    forward({"y is the source of term 0"}, [](auto& a) {
        a.terms[0].source = a.y;
        a.terms[0].shifted = true;
    });
    // One shifted term with a coefficient, and one without.
    const Changed<op::WeightedSumBackward> backward{
        {.gradients = {},
         .dy = real({8, 48}),
         .terms = {{{.source = real({8, 48}), .coefficient = f32({8, 1}), .shifted = true},
                    {.source = real({8, 48})}}},
         .sequence_length = 4}};
    backward({"dsource", "[8,48]", "[8,40]"}, [](auto& a) { a.gradients[0].dsource = real({8, 40}); });
    backward({"dcoefficient", "[8,1]", "[8]"}, [](auto& a) { a.gradients[0].dcoefficient = f32({8}); });
    backward({"term 1 has no coefficient"}, [](auto& a) { a.gradients[1].dcoefficient = f32({1}); });
    backward({"a gradient", "term 2 of 2"}, [](auto& a) { a.gradients[2].dsource = real({8, 48}); });
    backward({"dsource 1 is dy"}, [](auto& a) { a.gradients[1].dsource = a.dy; });
    backward({"dsource 1", "accumulates"}, [](auto& a) {
        a.gradients[0].dsource = a.gradients[1].dsource = real({8, 48});
    });
}

TEST_P(OpChecksTest, SharedSources) {
    const Changed<op::SharedSourcesBackward> refused{
        {.sources = {{{real({8, 48}), real({8, 48}), false}, {real({8, 48}), real({8, 48}), false}}},
         .sums = {{{real({8, 48}), {{{f32({8, 1}), f32({8, 1})}, {f32({8, 1}), f32({8, 1})}}}}}}}};
    refused({"0 sources"}, [](auto& a) { a.sources = {}; });
    refused({"0 sums"}, [](auto& a) { a.sums = {}; });
    refused({"source", "[8,48]", "[8,40]"}, [](auto& a) { a.sources[1].source = real({8, 40}); });
    refused({"dsource", "[8,48]", "[8,40]"}, [](auto& a) { a.sources[1].dsource = real({8, 40}); });
    refused({"one dsource"}, [](auto& a) { a.sources[1].dsource = a.sources[0].dsource; });
    refused({"dy", "[8,48]", "[7,48]"}, [](auto& a) { a.sums[0].dy = real({7, 48}); });
    refused({"dsource 1 is the dy of sum 0"}, [](auto& a) { a.sums[0].dy = a.sources[1].dsource; });
    refused({"given together"}, [](auto& a) { a.sums[0].terms[1].dcoefficient = {}; });
    refused({"coefficient", "[8,1]", "[8,2]"}, [](auto& a) { a.sums[0].terms[0].coefficient = f32({8, 2}); });
    refused({"dcoefficient", "[8,1]", "[8,2]"}, [](auto& a) {
        a.sums[0].terms[0].dcoefficient = f32({8, 2});
    });
    refused({"a term of source 1 of 1"}, [](auto& a) { a.sources[1] = {}; });
}

TEST_P(OpChecksTest, NarrowLinear) {
    const auto forward = [](int64_t inputs, int64_t outputs, const Tensor& weight, const Tensor& bias = {}) {
        return op::NarrowLinearForward{.y = f32({8, outputs}),
                                       .x = real({8, inputs}),
                                       .weight = weight,
                                       .bias = bias,
                                       .scale = 1.0f,
                                       .activation = GateActivation::tanh};
    };
    refuse(forward(12, 65, f32({65, 12})), {"[65,12]", "1 to 64"});
    refuse(forward(65, 6, f32({6, 65})), {"[8,65]", "1 to 64"});
    refuse(forward(12, 6, f32({6, 13})), {"weight", "[6,12]", "[6,13]"});
    refuse(forward(12, 5, f32({6, 12})), {"y", "[8,6]", "[8,5]"});
    refuse(forward(12, 6, f32({6, 24}).column_slice(0, 12)), {"weight", "not contiguous"});
    refuse(forward(12, 6, f32({6, 12}), f32({5})), {"bias", "[6]", "[5]"});
    const Changed<op::NarrowLinearBackward> backward{{.dx = real({8, 12}),
                                                      .dweight = f32({6, 12}),
                                                      .dbias = f32({6}),
                                                      .dy = f32({8, 6}),
                                                      .y = f32({8, 6}),
                                                      .x = real({8, 12}),
                                                      .weight = f32({6, 12}),
                                                      .scale = 1.0f,
                                                      .activation = GateActivation::tanh,
                                                      .accumulate_x = false,
                                                      .accumulate = false}};
    backward({"dx", "[8,12]", "[8,11]"}, [](auto& a) { a.dx = real({8, 11}); });
    backward({"dy", "[8,6]", "[8,5]"}, [](auto& a) { a.dy = f32({8, 5}); });
    backward({"dweight", "[6,12]", "[6,11]"}, [](auto& a) { a.dweight = f32({6, 11}); });
    backward({"dweight", "not contiguous"}, [](auto& a) { a.dweight = f32({6, 13}).column_slice(0, 12); });
    backward({"dbias", "[6]", "[7]"}, [](auto& a) { a.dbias = f32({7}); });
}

TEST_P(OpChecksTest, Rotary) {
    const Changed<op::QkNormRotaryForward> refused{
        {.q = real({3, 32}), .k = real({3, 32}), .rstd = f32({3, 4}), .options = {2, 16, true, false}}};
    refused({"rstd", "[3,4]", "[3,2]"}, [](auto& a) { a.rstd = f32({3, 2}); });
    refused({"q", "[3,32]", "[3,48]"}, [](auto& a) { a.q = a.k = real({3, 48}); });
    refused({"head_dim", "15"}, [](auto& a) {
        a.q = a.k = real({3, 30});
        a.options.head_dim = 15;
    });
    refused({"value mix z", "[3,32]", "[3,31]"}, [](auto& a) {
        a.value = {a.q, a.q, {real({3, 31}), f32({2})}};
    });
    refused({"[3,30]", "2 heads of even width"}, [](auto& a) {
        a.value = {real({3, 30}), real({3, 30}), {real({3, 30}), f32({2})}};
    });
    refused({"one of q and k"}, [](auto& a) { a.from_q = real({3, 32}); });
    refused({"rotary operand", "[3,32]", "[3,31]"}, [](auto& a) {
        a.from_q = real({3, 32});
        a.from_k = real({3, 31});
    });
    refused({"would not be written"}, [](auto& a) {
        a.from_q = a.from_k = real({3, 32});
        a.options.normalize = false;
    });
    const Tensor q = real({3, 48}), table = f32({8, 8});
    refuse(op::QkNormRotaryForward{.q = q,
                                   .k = q,
                                   .cos = table,
                                   .sin = table,
                                   .position = i32({3, 2}),
                                   .options = {3, 16, false, true}},
           {"2 positions of a token", "3 heads"});
}

TEST_P(OpChecksTest, OffsetKeys) {
    const Changed<op::OffsetKeysForward> refused{
        {.y = real({6, 32}), .x = real({6, 32}), .options = {2, 16, 4, 3}}};
    refused({"9 turning pairs", "16"}, [](auto& a) { a.options.rotated_pairs = 9; });
    refused({"3 turning pairs", "15"}, [](auto& a) { a.options = {2, 15, 3, 3}; });
    refused({"6 rows", "sequence length 4"}, [](auto& a) { a.options.sequence_length = 4; });
    refused({"[6,48]", "[6,32]"}, [](auto& a) { a.options.num_heads = 3; });
    const Tensor x = real({6, 32});
    refuse(op::OffsetKeysBackward{.dx = x, .dy = x, .options = {2, 16, 4, 3}}, {"its own operand"});
}

TEST_P(OpChecksTest, Attention) {
    const Changed<op::AttentionForward> forward{{.o = real({20, 32}),
                                                 .lse = f32({2, 20}),
                                                 .q = real({20, 32}),
                                                 .k = real({20, 32}),
                                                 .v = real({20, 32}),
                                                 .first_key = i32({20}),
                                                 .options = {10, 2, 16, 0, 1.0f}}};
    forward({"25", "10"}, [](auto& a) {
        a.o = a.q = a.k = a.v = real({25, 32});
        a.first_key = i32({25});
    });
    // o has the width of v, which may differ from that of q.
    forward({"[20,48]", "[20,32]"}, [](auto& a) { a.v = real({20, 48}); });
    forward({"[20,33]", "2 heads"}, [](auto& a) { a.v = real({20, 33}); });
    forward({"lse", "[2,20]", "[3,20]"}, [](auto& a) { a.lse = f32({3, 20}); });
    // 8 queries of one rank among 20 keys.
    const Changed<op::AttentionBackward> backward{{.dq = real({8, 32}),
                                                   .dk = real({20, 32}),
                                                   .dv = real({20, 32}),
                                                   .dout = real({8, 32}),
                                                   .o = real({8, 32}),
                                                   .lse = f32({2, 8}),
                                                   .q = real({8, 32}),
                                                   .k = real({20, 32}),
                                                   .v = real({20, 32}),
                                                   .first_key = i32({8}),
                                                   .place = i32({8}),
                                                   .options = {10, 2, 16, 0, 1.0f}}};
    backward({"25", "10"}, [](auto& a) { a.k = real({25, 32}); });
    for (const int64_t queries : {7, 0})
        backward({std::to_string(queries), "2"}, [=](auto& a) { a.q = a.o = a.dout = real({queries, 32}); });
    backward({"place", "[8]", "[20]"}, [](auto& a) { a.place = i32({20}); });
    backward({"first_key", "[8]", "[20]"}, [](auto& a) { a.first_key = i32({20}); });
    backward({"lse", "[2,8]", "[2,20]"}, [](auto& a) { a.lse = f32({2, 20}); });
    backward({"[20,32]", "[8,32]"}, [](auto& a) { a.v = real({8, 32}); });
    backward({"[8,32]", "[20,32]"}, [](auto& a) { a.dq = real({20, 32}); });
    backward({"[20,32]", "[8,32]"}, [](auto& a) { a.dk = real({8, 32}); });
    backward({"[8,48]", "[8,32]"}, [](auto& a) { a.v = a.dv = real({20, 48}); });
    backward({"rotary of inputs", "places"}, [](auto& a) { a.rotary.normalize = true; });
    backward({"rotary rstd", "[20,4]", "[20,2]"}, [](auto& a) {
        a.place = {};
        a.dq = a.dout = a.o = a.q = real({20, 32});
        a.lse = f32({2, 20});
        a.first_key = i32({20});
        a.rotary = {.normalize = true, .rstd = f32({20, 2})};
    });
    backward({"place", "i32", "f32"}, [](auto& a) { a.place = f32({8}); });
}

TEST_P(OpChecksTest, OwnValue) {
    const Changed<op::ExcludeOwnValueForward> forward{
        {.y = real({3, 32}), .o = real({3, 32}), .v = real({3, 32}), .alpha = f32({2})}};
    forward({"exclude_own_value v", "[3,32]", "[3,31]"}, [](auto& a) { a.v = real({3, 31}); });
    forward({"[3,32]", "5 heads"}, [](auto& a) { a.alpha = f32({5}); });
    forward({"exclude_own_value alpha", "[3,2]", "[4,2]"}, [](auto& a) { a.alpha = f32({4, 2}); });
    const Changed<op::ExcludeOwnValueBackward> backward{{.d_o = real({3, 32}),
                                                         .dv = real({3, 32}),
                                                         .dalpha = f32({2}),
                                                         .dy = real({3, 32}),
                                                         .o = real({3, 32}),
                                                         .v = real({3, 32}),
                                                         .alpha = f32({2}),
                                                         .accumulate_v = false,
                                                         .accumulate_alpha = false}};
    backward({"exclude_own_value dalpha", "[2]", "[3]"}, [](auto& a) { a.dalpha = f32({3}); });
}

TEST_P(OpChecksTest, ComposeHeads) {
    const Changed<op::ComposeHeadsForward> refused{
        {.c = real({4, 32}),
         .q = real({4, 32}),
         .k = real({4, 32}),
         .v = real({4, 32}),
         .first_key = i32({4}),
         .w1 = f32({2}),
         .w2 = f32({2}),
         .options = {.sequence_length = 4, .num_heads = 2, .head_dim = 16, .keys = 3}}};
    refused({"compose_heads v", "[4,32]", "[4,31]"}, [](auto& a) { a.v = real({4, 31}); });
    refused({"compose_heads v", "[4,32]", "[4,64]"}, [](auto& a) { a.v = real({4, 64}); });
    refused({"compose_heads w2", "[4,2]", "[3,2]"}, [](auto& a) { a.w2 = f32({3, 2}); });
    refused({"257 keys", "1 to 256"}, [](auto& a) { a.options.keys = 257; });
    refused({"4 rows", "sequence length 3"}, [](auto& a) { a.options.sequence_length = 3; });
}

}  // namespace speedrun::testing::op_checks_test
