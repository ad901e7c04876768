// NorMuon (Muon with second moments per line) on the parameters and gradients of the Muon fixture, against float64
// reference operations.
#include <algorithm>

#include "tests/reference/reference.h"
#include "tests/train/optimizer_harness.h"

namespace speedrun::testing::normuon_test {

class NormuonTest : public ::testing::Test {
  protected:
    NormuonTest() {
        fixture_.group.muon.normuon = true;
        fixture_.group.muon.beta2 = 0.8;
    }
    OptimizerHarness harness() const { return muon_harness(fixture_, DType::f32); }
    // Values of one parameter after each step. rows_of: rows of each of its matrices.
    std::vector<Values> reference_steps(const OptimizerFixture::Entry& entry,
                                        const std::vector<int64_t>& rows_of, int64_t cols) {
        using reference::Matrix;
        const OptimizerGroupConfig& group = fixture_.group;
        const int64_t count = static_cast<int64_t>(entry.start.size());
        Matrix master(1, count), momentum(1, count), grad(1, count);
        master.values = entry.start;
        std::vector<Matrix> second_moments;
        for (const int64_t rows : rows_of)
            second_moments.emplace_back(1, num_lines(group.muon.normuon_lines, rows, cols));
        std::vector<Values> after;
        for (int step = 0; step < 10; ++step) {
            grad.values = entry.gradients.at(step);
            const float mu = static_cast<float>(muon_momentum_at(group, group.muon, step));
            const Matrix direction = reference::muon_momentum(momentum, grad, 1.0, mu, group.muon.nesterov);
            int64_t begin = 0;
            for (size_t i = 0; i < rows_of.size(); ++i) {
                Matrix one(rows_of[i], cols), weights(rows_of[i], cols);
                for (int64_t j = 0; j < one.size(); ++j) {
                    one[j] = direction[begin + j];
                    weights[j] = master[begin + j];
                }
                one = reference::polar_express(one, group.muon.polar_epsilon);
                reference::normuon_scale(one, second_moments[i], static_cast<float>(group.muon.beta2),
                                         group.muon.normuon_lines, static_cast<float>(group.muon.epsilon));
                const double scale =
                    std::sqrt(std::max(1.0, static_cast<double>(rows_of[i]) / static_cast<double>(cols)));
                const double lr = group.lr * fixture_.lr_factors[step];
                reference::muon_apply(weights, one, static_cast<float>(lr * scale),
                                      static_cast<float>(group.weight_decay / scale), group.muon.cautious);
                for (int64_t j = 0; j < one.size(); ++j) master[begin + j] = weights[j];
                begin += one.size();
            }
            after.push_back(master.values);
        }
        return after;
    }

    // Rows of each matrix. With heads_per_matrix, q and k are split by heads.
    std::vector<int64_t> rows_of(const Parameter& p) const {
        const int64_t heads = fixture_.group.muon.heads_per_matrix;
        const std::vector<int64_t> stacks = p.stacks();
        if (heads == 0 || stacks.size() == 1) return stacks;
        std::vector<int64_t> cut(static_cast<size_t>(2 * kHeads / heads),
                                 stacks[0] * heads / kHeads);  // q, k
        cut.push_back(stacks[2]);
        return cut;
    }

    static constexpr int64_t kHeads = 4;         // heads of the fixture's model
    using Ends = std::map<std::string, Values>;  // values after ten steps, by parameter
    // ‖a − b‖ relative to ‖b − start‖
    static double way_between(const Values& a, const Values& b, const OptimizerFixture::Entry& entry) {
        return norm_of(difference_of(a, b)) / norm_of(difference_of(b, entry.start));
    }
    // Runs the group's steps, compares them with float64 and returns their end. Tolerance: that of plain Muon. The
    // per-line factors are smooth functions of the polar factor and do not increase its error.
    Ends ends_of_reference_steps() {
        OptimizerHarness h = harness();
        Ends ends;
        for (const auto& [name, entry] : fixture_.parameters) {
            const Parameter& p = h.parameter(name);
            const std::vector<Values> expected = reference_steps(entry, rows_of(p), p.shape[1]);
            for (int step = 0; step < 10; ++step) {
                h.step(name, entry.gradients.at(step), step, fixture_.lr_factors[step]);
                EXPECT_LT(way_between(h.value(name), expected[step], entry), 5e-5)
                    << name << " after " << step + 1;
            }
            ends[name] = expected.back();
        }
        return ends;
    }

    OptimizerFixture fixture_ = load_optimizer_fixture("muon");
};

TEST_F(NormuonTest, TenStepsAgreeInF32) {
    const Ends ends = ends_of_reference_steps();
    fixture_.group.muon.normuon = false;
    OptimizerHarness plain = harness();
    for (const auto& [name, entry] : fixture_.parameters) {
        for (int step = 0; step < 10; ++step)
            plain.step(name, entry.gradients.at(step), step, fixture_.lr_factors[step]);
        // The difference is small for square matrices: all rows of an orthogonal matrix already have the same norm.
        EXPECT_GT(way_between(plain.value(name), ends.at(name), entry), 1e-3)
            << name << ": the switch changes nothing";
    }
}

// Each key alone changes the result. `columns` changes only matrices with rows >= columns.
TEST_F(NormuonTest, TenStepsAgreeWithOtherSettings) {
    const Ends usual = ends_of_reference_steps();
    const OptimizerGroupConfig given = fixture_.group;
    const auto expect_other_ends = [&](const char* key) {
        SCOPED_TRACE(key);
        double largest = 0;
        for (const auto& [name, end] : ends_of_reference_steps())
            largest = std::max(largest, way_between(end, usual.at(name), fixture_.parameters.at(name)));
        EXPECT_GT(largest, 1e-3) << "the key changes nothing";
        fixture_.group = given;
    };
    fixture_.group.muon.normuon_lines = NormuonLines::columns;
    expect_other_ends("normuon_lines");
    fixture_.group.muon.epsilon = 0.1;
    expect_other_ends("epsilon");
    fixture_.group.muon.polar_epsilon = 100;
    expect_other_ends("polar_epsilon");
}

// q and k in pairs of heads, v whole. Both kinds of lines must match the reference and differ from whole matrices.
TEST_F(NormuonTest, TenStepsAgreeWithHeadPairs) {
    const Ends usual = ends_of_reference_steps();
    fixture_.group.muon.heads_per_matrix = 2;
    for (const NormuonLines lines : {NormuonLines::more, NormuonLines::rows}) {
        fixture_.group.muon.normuon_lines = lines;
        for (const auto& [name, end] : ends_of_reference_steps()) {
            if (name.find("qkv") == std::string::npos) continue;
            EXPECT_GT(way_between(end, usual.at(name), fixture_.parameters.at(name)), 1e-2) << name;
        }
    }
}

TEST_F(NormuonTest, NanScaleSkipsAndResetClears) {
    OptimizerHarness plain = harness(), other = harness();
    for (const auto& [name, entry] : fixture_.parameters) {
        plain.step(name, entry.gradients[0], 0, 1);
        other.step(name, entry.gradients[0], 0, 1);
        other.step(name, Values(entry.start.size(), std::nan("")), 1, 1, std::nan(""));
        plain.step(name, entry.gradients[1], 1, 1);
        other.step(name, entry.gradients[1], 1, 1);
        EXPECT_EQ(other.value(name), plain.value(name)) << name << ": the second moments were touched";
    }
    plain.reset();
    OptimizerHarness fresh = harness();
    for (const auto& [name, entry] : fixture_.parameters) {
        plain.set(name, entry.start);
        plain.step(name, entry.gradients[2], 2, 1);
        fresh.step(name, entry.gradients[2], 2, 1);
        EXPECT_EQ(plain.value(name), fresh.value(name)) << name;
    }
}

TEST_F(NormuonTest, ReportsSecondMomentMemory) {
    OptimizerHarness by_the_longer = harness();
    fixture_.group.muon.normuon_lines = NormuonLines::columns;
    OptimizerHarness by_column = harness();
    fixture_.group.muon.normuon = false;
    OptimizerHarness without = harness();
    int64_t longer = 0, columns = 0;
    for (const auto& [name, entry] : fixture_.parameters) {
        const Parameter& p = without.parameter(name);
        for (const int64_t rows : p.stacks()) {
            longer += std::max(rows, p.shape[1]) * size_of(DType::f32);
            columns += p.shape[1] * size_of(DType::f32);
        }
    }
    EXPECT_LT(columns, longer);
    EXPECT_EQ(by_the_longer.optimizer_bytes() - without.optimizer_bytes(), longer);
    EXPECT_EQ(by_column.optimizer_bytes() - without.optimizer_bytes(), columns);
}

}  // namespace speedrun::testing::normuon_test
