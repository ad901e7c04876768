#include "train/model/nodes/fusions.h"

#include "train/model/nodes/attention.h"
#include "train/model/nodes/norm.h"

namespace speedrun {

namespace {

// Two neighbours: First, then a Second that reads what it writes, through this one of its ports.
template <class First, class Second, size_t kRead>
class Pair : public Fusion {
  public:
    size_t matches(std::span<const Node* const> nodes) const override {
        if (nodes.size() < 2) return 0;
        const auto* const first = dynamic_cast<const First*>(nodes[0]);
        const auto* const second = dynamic_cast<const Second*>(nodes[1]);
        if (!first || !second) return 0;
        return second->reads()[kRead].value == first->writes().front().value ? 2 : 0;
    }
    void forward(std::span<const Call> calls) const override {
        enqueue(static_cast<const First&>(calls[0].node()), calls[0],
                static_cast<const Second&>(calls[1].node()), calls[1]);
    }

  private:
    virtual void enqueue(const First& first, const Call& first_call, const Second& second,
                         const Call& second_call) const = 0;
};

template <class Normed>
class AddThenNorm final : public Pair<Add, Normed, 0> {  // x
    void enqueue(const Add& add, const Call& add_call, const Normed& norm,
                 const Call& norm_call) const override {
        norm.forward_of(norm_call, &add_call, &add);
    }
};

class RotaryAndMix final : public Pair<QkNormRotary, MixValues, 2> {  // q
    void enqueue(const QkNormRotary& rotary, const Call& rotary_call, const MixValues& mix,
                 const Call& mix_call) const override {
        rotary.enqueue(rotary_call, mix.mix(mix_call));
    }
};

}  // namespace

Fusions model_fusions() {
    Fusions fusions;
    fusions.push_back(std::make_unique<AddThenNorm<Norm>>());
    fusions.push_back(std::make_unique<AddThenNorm<MixNorm>>());
    fusions.push_back(std::make_unique<RotaryAndMix>());
    return fusions;
}

}  // namespace speedrun
