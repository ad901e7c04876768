// What is timed: every operation of kernels/ops/ops.h at the shapes that the 124M models run it at, with the
// work that it cannot avoid and what others have published for it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/bench/case_memory.h"
#include "tests/bench/shapes.h"

namespace speedrun::bench {

// An expectation from elsewhere, in one of three units (the others are 0).
struct Published {
    std::string source;
    double tflops = 0;          // rate of the same product or attention
    double ms = 0;              // time of the same call
    double share_of_floor = 0;  // what good kernels of this kind reach
};

using Enqueue = std::function<void(Ops&, Stream&)>;

struct Case {
    std::string name;  // group.shape.what: "product.recipe.qkv.forward"
    std::string op;    // the operation of kernels/ops/ops.h that is timed
    std::string shape;
    double flops = 0;  // of products and attention, the least; 0: bound by memory
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
