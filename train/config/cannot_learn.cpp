#include "train/config/cannot_learn.h"

#include <fmt/format.h>

#include <algorithm>

namespace speedrun {

namespace {

bool is_zero(const InitConfig& init, double init_scale) {
    return init.value == 0 || (init.type != InitKind::constant && init_scale == 0);
}

class InitialZeros {
  public:
    explicit InitialZeros(const ModelConfig& model)
        : init_scale_(model.init_scale), parts_(model.spelled_out()) {}

    std::vector<std::string> find() const {
        std::vector<std::string> found;
        const auto layers = parts_.layers.resolved();
        bool stream = !input_is_zero();  // is anything but zero in it?
        for (size_t i = 0; i < layers.size(); ++i) {
            if (!layers[i]) continue;
            const std::string key = fmt::format("model.layers, layer {}: ", i);
            if (const auto& attention = layers[i]->attention) {
                const bool no_values = values_are_zero(*attention, stream),
                           no_output = zero(attention->out_init);
                if (values_are_zero(*attention, true) && no_output)
                    found.push_back(
                        key +
                        "attention's values and its out_init are zero at the start, so that both stay zero: "
                        "give init, or out_init, a value");
                stream = stream || (!no_values && !no_output);
            }
            if (const auto& mlp = layers[i]->mlp) {
                // relu(x)² has no slope at 0, so that such an MLP waits for no second matrix.
                const bool flat = mlp->activation == Activation::relu_squared;
                if (zero(mlp->init) && (flat || zero(mlp->down_init)))
                    found.push_back(fmt::format(
                        "{}mlp's init is zero, and {}, so that both matrices stay as they are: give init a value",
                        key, flat ? "relu_squared has no slope at zero" : "so is its down_init"));
            }
        }
        if (!stream && head_is_zero())
            found.insert(
                found.begin(),
                "model.input: all tables are zero at the start, and so is what the head multiplies by, so that "
                "nothing in this model ever learns: give a table's init, or head.init, a value");
        return found;
    }

  private:
    bool zero(const InitConfig& init) const { return is_zero(init, init_scale_); }
    bool table_is_zero(const std::string& name) const { return zero(parts_.find_table(name)->init); }
    bool input_is_zero() const {
        return std::all_of(parts_.input.begin(), parts_.input.end(), [&](const StreamPartConfig& part) {
            return part.type != StreamPart::table || table_is_zero(part.table);
        });
    }
    bool head_is_zero() const {
        return parts_.head.tied_to.empty() ? zero(parts_.head.init) : table_is_zero(parts_.head.tied_to);
    }
    // stream: is anything in what they are computed from?
    bool values_are_zero(const AttentionConfig& attention, bool stream) const {
        const bool computed = stream && !zero(attention.init);
        if (attention.value_table.empty())
            return !computed || (attention.value_scale && attention.value_start == 0);
        return attention.value_start == 0 || (!computed && table_is_zero(attention.value_table));
    }

    const double init_scale_;
    const ModelParts parts_;
};

}  // namespace

std::vector<std::string> parts_that_cannot_learn(const ModelConfig& model) {
    if (!model.init_from.empty()) return {};
    return InitialZeros(model).find();
}

}  // namespace speedrun
