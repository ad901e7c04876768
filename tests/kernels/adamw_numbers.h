// An AdamW step and its state, for tests.
#pragma once

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {

// The caller sets the tensors.
inline op::AdamwStep adamw_numbers(int64_t step = 1) {
    return {.parameter = {},
            .master = {},
            .first_moment = {},
            .second_moment = {},
            .grad = {},
            .grad_scale = {},
            .learning_rate = 0.01f,
            .beta1 = 0.65f,
            .beta2 = 0.95f,
            .epsilon = 1e-8f,
            .weight_decay = 0.1f,
            .step = step};
}

struct AdamwState {
    Matrix master, first_moment, second_moment;

    explicit AdamwState(int64_t count, DType weights = DType::f32, DType moments = DType::f32)
        : master(random_matrix(1, count, 1, weights)),
          first_moment(random_matrix(1, count, 2, moments, 0.1)),
          second_moment(random_matrix(1, count, 3, moments, 0.1)) {
        for (double& v : second_moment.values) v = std::abs(v);
    }
    void step(const Matrix& grad, double scale, const op::AdamwStep& a) {
        reference::adamw_step(master, first_moment, second_moment, grad, scale, a);
    }
};

// The step on this state, with a master and moments of these types; the caller sets the parameter.
inline op::AdamwStep place(Harness& h, op::AdamwStep a, const AdamwState& state, const Matrix& grad,
                           double scale, DType moments = DType::f32, DType master = DType::f32) {
    const int64_t count = grad.cols;
    a.master = a.parameter = h.inout(state.master, master, {count});
    a.first_moment = h.inout(state.first_moment, moments, {count});
    a.second_moment = h.inout(state.second_moment, moments, {count});
    a.grad = h.input(grad, DType::f32, {count});
    a.grad_scale = h.input(Matrix(1, 1, scale), DType::f32, {1});
    return a;
}

// Calls the step; returns parameter, master and both moments.
inline Outputs step(Harness& h, const op::AdamwStep& a) {
    h.call(a);
    return {h.read(a.parameter), h.read(a.master), h.read(a.first_moment), h.read(a.second_moment)};
}

}  // namespace speedrun::testing
