// Timed cases: every operation of kernels/ops/ops.h with the shapes of the 124M models, its minimum work, and
// published figures.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/bench/case_memory.h"
#include "tests/bench/shapes.h"

namespace speedrun::bench {

// A published figure, in one of three units (the others are 0).
struct Published {
    std::string source;
    double tflops = 0;          // rate of the same matmul or attention
    double ms = 0;              // time of the same call
    double share_of_floor = 0;  // share of the roofline bound that good kernels of this kind reach
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

std::vector<Case> product_cases(const Shapes& shapes);
std::vector<Case> attention_cases(const Shapes& shapes);
std::vector<Case> embedding_cases(const Shapes& shapes);
std::vector<Case> pointwise_cases(const Shapes& shapes);  // norms, pointwise, rotary, loss
std::vector<Case> combine_cases(const Shapes& shapes);    // weighted sums and gates
std::vector<Case> optimizer_cases(const Shapes& shapes);
std::vector<Case> utility_cases(const Shapes& shapes);
std::vector<Case> all_cases(const Shapes& shapes);

}  // namespace speedrun::bench
