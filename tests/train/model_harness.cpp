#include "tests/train/model_harness.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

namespace speedrun::testing {

HostBatch HostBatch::rows(int64_t begin, int64_t count, int64_t sequence_length) const {
    const int64_t first = begin * sequence_length, last = first + count * sequence_length;
    const auto part = [&](const std::vector<int32_t>& v) {
        return std::vector<int32_t>(v.begin() + first, v.begin() + last);
    };
    HostBatch batch{part(tokens), part(targets), part(positions), part(first_key)};
    for (int32_t& key : batch.first_key) key -= static_cast<int32_t>(first);
    return batch;
}

HostBatch batch_of(const ModelFixture& fixture) {
    return {fixture.tokens, fixture.targets, fixture.positions, fixture.first_key};
}

HostBatch random_batch(const ModelConfig& model, int64_t rows, int64_t sequence_length, bool document_mask,
                       uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto token = [&] { return static_cast<int32_t>(random() % model.vocab_size); };
    HostBatch batch;
    for (int64_t row = 0; row < rows; ++row) {
        auto start = static_cast<int32_t>(row * sequence_length);
        for (int64_t i = 0; i < sequence_length; ++i) {
            if (document_mask && random() % 5 == 0) start = static_cast<int32_t>(row * sequence_length + i);
            batch.tokens.push_back(token());
            batch.targets.push_back(random() % 8 == 0 ? -1 : token());
            batch.positions.push_back(static_cast<int32_t>(i));
            batch.first_key.push_back(start);
        }
    }
    return batch;
}

// One thread: for such small models, a thread pool costs more than the work.
ModelHarness::ModelHarness(const ModelConfig& config, int64_t tokens, int64_t sequence_length,
                           DType precision, const BucketRules& rules, const MemoryConfig& memory,
                           bool wgmma_attention)
    : runtime({.device = DeviceKind::cpu,
               .precision = precision,
               .threads = 1,
               .wgmma_attention = wgmma_attention}),
      models_(Transformer::make({{config, {.tokens = tokens, .sequence_length = sequence_length}}}, runtime,
                                {.rules = rules, .memory = memory})),
      model(*models_.front()),
      gradients(model.table(), model.parameters().layout(), runtime),
      tracker(model.table(), gradients, model.description().inactive),
      loss_(config.parts.loss),
      loss_sum_(runtime.device(), "test loss", MemoryCategory::workspace, size_of(DType::f32)) {
    model.track(&tracker);
}

ModelHarness::~ModelHarness() {
    try {
        runtime.synchronize();
    } catch (const std::exception&) {  // the test has already failed and reported it
    }
}

void ModelHarness::set(const Parameter& p, const Values& values) {
    if (static_cast<int64_t>(values.size()) != p.numel())
        throw std::runtime_error(p.name + ": wrong number of values");
    const std::vector<float> host(values.begin(), values.end());
    const Tensor master = model.parameters().master(p);
    runtime.device().copy(master.data, host.data(), master.bytes(), runtime.compute());
    model.parameters().cast_to_compute(p, runtime.compute());
    runtime.synchronize();
}

void ModelHarness::load(const ModelFixture& fixture) {
    for (const Parameter& p : table().all()) set(p, fixture.parameters.at(p.name).values);
}

void ModelHarness::randomize(double deviation, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(0, deviation);
    for (const Parameter& p : table().all()) {
        const double mean = p.name.ends_with(".gain") ? 1.0 : p.name.ends_with("mix") ? 0.7 : 0.0;
        Values values(p.numel());
        for (double& value : values) value = mean + normal(random);
        set(p, values);
    }
}

void ModelHarness::upload(const HostBatch& batch) {
    Batch ids{.tokens = batch.tokens,
              .targets = batch.targets,
              .positions = batch.positions,
              .first_key = batch.first_key};
    complete(ids, model.description().columns(),
             {.sequence_length = model.shape().batch.sequence_length,
              .prefixes = std::make_shared<const std::vector<int32_t>>(prefixes)});
    model.put_batch(ids, loss_.numbers_at({}));
}

double ModelHarness::forward_loss(const HostBatch& batch) {
    upload(batch);
    model.forward(false);
    model.loss(loss_sum_.tensor(DType::f32, {1}), false);
    double sum = 0;
    for (double loss : read(model.losses())) sum += loss;
    return sum;
}

double ModelHarness::backward(const HostBatch& batch, float gradient_scale) {
    upload(batch);
    model.forward(true);
    model.loss_and_backward(loss_sum_.tensor(DType::f32, {1}), false, gradient_scale);
    double sum = 0;
    for (double loss : read(model.losses())) sum += loss;
    const double on_device = read(loss_sum_.tensor(DType::f32, {1}))[0];
    if (!(std::abs(on_device - sum) <= 1e-6 * std::abs(sum)))
        throw std::runtime_error("the loss sum is not the sum of the losses");
    return sum;
}

Values ModelHarness::read(const Tensor& tensor) {
    std::vector<char> bytes(tensor.bytes());
    runtime.device().copy(bytes.data(), tensor.data, tensor.bytes(), runtime.compute());
    runtime.synchronize();
    if (tensor.dtype == DType::bf16) {
        const auto* first = reinterpret_cast<const Bf16*>(bytes.data());
        return Values(first, first + tensor.numel());
    }
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return Values(first, first + tensor.numel());
}

double norm_of(const Values& a) {
    double squares = 0;
    for (double value : a) squares += value * value;
    return std::sqrt(squares);
}

double largest_of(const Values& a) {
    double largest = 0;
    for (double value : a) {
        if (std::isnan(value)) return value;  // std::max would drop a NaN
        largest = std::max(largest, std::abs(value));
    }
    return largest;
}

Values difference_of(const Values& a, const Values& b) {
    Values difference(a.size());
    for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b.at(i);
    return difference;
}

}  // namespace speedrun::testing
