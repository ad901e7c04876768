// Timed cases: every operation of kernels/ops/ops.h with the shapes of the 124M models, its minimum work, and
// published figures.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/bench/case_memory.h"
#include "tests/bench/shapes.h"
#include "tests/kernels/any_op.h"

namespace speedrun::bench {

// A published figure, in one of three units (the others are 0).
struct Published {
    std::string source;
    double tflops = 0;          // rate of the same matmul or attention
    double ms = 0;              // time of the same call
    double share_of_bound = 0;  // share of the roofline bound that good kernels of this kind reach
};

using Enqueue = std::function<void(Ops&, Stream&)>;

struct Case {
    std::string name;  // group.shape.name: "product.recipe.qkv.forward"
    std::string op;    // timed operation of kernels/ops/ops.h
    std::string shape;
    double flops = 0;  // minimum FLOPs of matmuls and attention; 0: memory-bound
    std::vector<Published> published;
    // Allocates one set of tensors and returns the call on it.
    std::function<Enqueue(CaseMemory&)> prepare;
};

// The fields of a case except its operation.
struct CaseText {
    std::string name, shape;
    double flops = 0;
    std::vector<Published> published = {};
};

// Adds a case. prepare(CaseMemory&) allocates the tensors and returns the arguments of the operation.
template <class Prepare>
void add_case(std::vector<Case>& cases, CaseText text, Prepare prepare) {
    using Arguments = std::invoke_result_t<Prepare, CaseMemory&>;
    cases.push_back({std::move(text.name), testing::name_of_op(static_cast<Arguments*>(nullptr)),
                     std::move(text.shape), text.flops, std::move(text.published),
                     [=](CaseMemory& m) -> Enqueue {
                         return [a = prepare(m)](Ops& ops, Stream& stream) { testing::call(ops, a, stream); };
                     }});
}

// q, k and v, or their gradients, side by side as the preceding matmul stores them. width: columns of q and of k.
struct Sides {
    Tensor q, k, v;
};
inline Sides sides_of(const Tensor& qkv, int64_t width) {  // width: columns of q and of k
    return {qkv.column_slice(0, width), qkv.column_slice(width, width),
            qkv.column_slice(2 * width, qkv.cols() - 2 * width)};
}

std::vector<Case> product_cases(const Shapes& shapes);
std::vector<Case> attention_cases(const Shapes& shapes);
std::vector<Case> embedding_cases(const Shapes& shapes);
std::vector<Case> pointwise_cases(const Shapes& shapes);  // norms, pointwise, rotary, loss
std::vector<Case> combine_cases(const Shapes& shapes);    // weighted sums and gates
std::vector<Case> optimizer_cases(const Shapes& shapes);
std::vector<Case> utility_cases(const Shapes& shapes);
std::vector<Case> all_cases(const Shapes& shapes);

}  // namespace speedrun::bench
