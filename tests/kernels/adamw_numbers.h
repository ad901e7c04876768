// An AdamW step and its state, for tests.
#pragma once

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {

using reference::AdamwNumbers;

inline AdamwNumbers adamw_numbers(int64_t step = 1) {
    return {.learning_rate = 0.01f,
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
    void step(const Matrix& grad, double scale, const AdamwNumbers& a) {
        reference::adamw_step(master, first_moment, second_moment, grad, scale, a);
    }
};

// Numbers of a step in device memory.
template <size_t N>
Tensor numbers_in(Harness& h, const std::array<float, N>& values) {
    Matrix numbers(1, N);
    for (size_t i = 0; i < N; ++i) numbers[static_cast<int64_t>(i)] = values[i];
    return h.input(numbers, DType::f32, {N});
}
inline Tensor rates_in(Harness& h, const AdamwNumbers& numbers) {
    return numbers_in(h, adamw_rates({.learning_rate = numbers.learning_rate,
                                      .weight_decay = numbers.weight_decay,
                                      .beta1 = numbers.beta1,
                                      .beta2 = numbers.beta2,
                                      .step = numbers.step}));
}

// The step on this state, with a master and moments of these types; the caller sets the parameter.
inline op::AdamwStep place(Harness& h, const AdamwNumbers& numbers, const AdamwState& state,
                           const Matrix& grad, double scale, DType moments = DType::f32,
                           DType master = DType::f32) {
    const int64_t count = grad.cols;
    const Tensor weights = h.inout(state.master, master, {count});
    return {.parameter = weights,
            .master = weights,
            .first_moment = h.inout(state.first_moment, moments, {count}),
            .second_moment = h.inout(state.second_moment, moments, {count}),
            .grad = h.input(grad, DType::f32, {count}),
            .grad_scale = h.input(Matrix(1, 1, scale), DType::f32, {1}),
            .rates = rates_in(h, numbers),
            .beta1 = numbers.beta1,
            .beta2 = numbers.beta2,
            .epsilon = numbers.epsilon,
            .cautious = numbers.cautious,
            .decays_unmoved = numbers.decays_unmoved};
}

// Calls the step; returns parameter, master and both moments.
inline Outputs step(Harness& h, const op::AdamwStep& a) {
    h.call(a);
    return {h.read(a.parameter), h.read(a.master), h.read(a.first_moment), h.read(a.second_moment)};
}

}  // namespace speedrun::testing
