#include "tests/train/twin_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace speedrun::testing {

Values product(const Values& w, const Values& x) {
    Values y(w.size() / x.size());
    for (size_t r = 0; r < y.size(); ++r)
        for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    return y;
}

Values normed(const Values& x) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    Values y = x;
    for (double& v : y) v /= std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    return y;
}

void add(Values& x, double a, double b, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * y[i];
}

double TwinModel::loss() const {
    const Values all = losses();
    return std::accumulate(all.begin(), all.end(), 0.0);
}

Values TwinModel::row(const std::string& table, int64_t index, int64_t width) const {
    const auto begin = p.at(table + ".weight").begin() + index * width;
    return {begin, begin + width};
}

Values TwinModel::linear(const std::string& name, const Values& x) const {
    Values y = product(p.at(name + ".weight"), x);
    if (const auto bias = p.find(name + ".bias"); bias != p.end()) add(y, 1, 1, bias->second);
    return y;
}

Values TwinModel::network(const std::string& name, double scale, const Values& u) const {
    Values hidden = product(p.at("networks." + name + ".up.weight"), u);
    for (double& h : hidden) h *= 0.5 * std::erfc(-h / std::sqrt(2.0));
    Values out = product(p.at("networks." + name + ".down.weight"), hidden);
    add(out, scale, scale, p.at("networks." + name + ".bias"));
    return out;
}

Values TwinModel::mlp(const std::string& block, const Values& x) const {
    Values hidden = product(p.at(block + "mlp.up.weight"), normed(x));
    for (double& h : hidden) h = h > 0 ? h * h : 0;
    return product(p.at(block + "mlp.down.weight"), hidden);
}

Values TwinModel::logits(const Values& x) const {
    Values z = product(p.at("head.weight"), normed(x));
    z.resize(static_cast<size_t>(vocabulary));
    for (double& v : z) v = softcap > 0 ? softcap * std::tanh(v / softcap) : v;
    return z;
}

double TwinModel::cross_entropy(const Values& z, int32_t target) {
    if (target < 0) return 0;
    double sum = 0;
    for (const double v : z) sum += std::exp(v);
    return std::log(sum) - z[static_cast<size_t>(target)];
}

static void expect_gradients(ModelHarness& h, TwinModel& twin, const TwinCase& c, std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    for (const Parameter& p : h.table().all()) {
        const Values gradient = h.gradient(p);
        EXPECT_GT(norm_of(gradient), 0) << p.name;
        Values& values = twin.p.at(p.name);
        const Values start = values;
        for (int trial = 0; trial < 3; ++trial) {
            Values direction(values.size());
            for (double& d : direction) d = normal(random);
            const auto at = [&](double step) {
                values = start;
                add(values, 1, step, direction);
                return twin.loss();
            };
            constexpr double kStep = 1e-5;
            const double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
            values = start;
            const double given =
                std::inner_product(direction.begin(), direction.end(), gradient.begin(), 0.0);
            EXPECT_NEAR(given, slope, 5e-5 * norm_of(gradient) + c.least(p)) << p.name;
        }
    }
}

void expect_twin(const TwinCase& c, const MakeTwin& make) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
        ModelHarness h(c.model, c.rows * c.sequence_length, c.sequence_length, DType::f32, {},
                       {.activation_checkpointing = checkpointing});
        const HostBatch batch = random_batch(c.model, c.rows, c.sequence_length, true, 3);
        const std::unique_ptr<TwinModel> twin = make(batch);
        std::mt19937_64 random(5);
        for (const Parameter& p : h.table().all()) h.set(p, twin->p[p.name] = c.start(p, random));
        h.prefixes = c.prefixes;
        h.tracker.begin_step();
        h.backward(batch, 1);
        const Values losses = h.read(h.model.losses()), expected = twin->losses();
        // A loss accumulates a few dozen roundings of 6e-8.
        for (size_t t = 0; t < losses.size(); ++t) EXPECT_NEAR(losses[t], expected[t], 2e-5) << "token " << t;
        expect_gradients(h, *twin, c, random);
    }
}

Values normal_values(const Parameter& p, double mean, double deviation, std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    Values values(static_cast<size_t>(p.numel()));
    for (double& v : values) v = static_cast<float>(mean + deviation * normal(random));
    return values;
}

}  // namespace speedrun::testing
