#include "train/model/parts/mlp.h"

#include "kernels/device/error.h"
#include "train/model/layers.h"
#include "train/model/nodes/activation.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

namespace {

// y = silu(gate) · x, elementwise.
class SiluProduct final : public Node {
  public:
    struct Ports {
        ValueId y, gate, x;  // (tokens, hidden)
    };
    explicit SiluProduct(const Ports& ports)
        : Node(Cost::pointwise),
          y(writes({.value = ports.y})),
          gate(reads({.value = ports.gate,
                      .gradient = GradientRule::written,
                      .in_backward = true,
                      .in_place = true})),
          x(reads({.value = ports.x, .gradient = GradientRule::written, .in_backward = true})) {}
    const char* kind() const override { return "silu product"; }
    void forward(const Call& call) const override {
        call.ops.silu_product_forward({.y = call(y), .gate = call(gate), .x = call(x)}, call.stream);
    }
    void backward(const Call& call) const override {
        call.ops.silu_product_backward({.dgate = call.gradient(gate).tensor,
                                        .dx = call.gradient(x).tensor,
                                        .dy = call.gradient(y),
                                        .gate = call(gate),
                                        .x = call(x)},
                                       call.stream);
    }

    const Out y;
    const In gate, x;
};

}  // namespace

void MlpConfig::fields(FieldVisitor& v) {
    v.field("ratio", ratio, "hidden width as a multiple of model.model_dim", {1, 64});
    v.choice("activation", activation, "nonlinearity");
    v.field(
        "swiglu", swiglu,
        "SwiGLU: the hidden layer is silu(G x)*(W x) with a second matrix G, mlp.gate, of the shape and initial values of W, mlp.up; "
        "instead of activation");
    v.field("bias", bias, "biases of the linear layers");
    init_field(v, "init", init, "initial first matrix");
    init_field(v, "down_init", down_init, "initial second matrix");
    v.optional(
        "up_fp8", up_fp8,
        "FP8 (e4m3) matmul by the first matrix in training's forward; backward and validation: compute dtype; null: off");
    v.optional("down_fp8", down_fp8, "FP8 matmul by the second matrix, as up_fp8");
    v.objects("after", after, kAfterHelp);
    v.retired("join", kJoinRetired);
}

void MlpConfig::check(const std::string& key, int64_t model_dim) const {
    if (!uses_fp8()) return;
    expect_fp8_width(key + ", in fp8", model_dim);
    if (bias)
        throw_usage("{}: FP8 matmuls add no bias: set mlp.bias false, or up_fp8 and down_fp8 null", key);
}

void MlpConfig::build(MlpLayer& layer) const {
    GraphWriter& w = layer.w;
    const int64_t width = w.extents.width().size, hidden_size = ratio * width;
    const Extent hidden_width = w.extents.cut({Dimension::hidden, hidden_size});
    const ValueId x = into_matrices(w, layer.normed);
    const auto hidden = [&](const char* name, const char* meaning) {
        return w.linear(name, x,
                        {.outputs = hidden_width,
                         .inputs = w.extents.width(),
                         .init = init,
                         .bias = bias,
                         .fan_in = width,
                         .meaning = meaning,
                         .fp8 = up_fp8});
    };
    const ValueId gate =
        swiglu ? hidden("mlp.gate", "h = silu(W x) * product of mlp.up, x normed") : kNoValue;
    const ValueId up = hidden("mlp.up", swiglu ? "factor of h, see mlp.gate" : "h = f(W x), x normed");
    // relu² overwrites its input, which backward does not read.
    const bool overwrites = !swiglu && activation == Activation::relu_squared;
    const ValueId activated = overwrites ? w.view(up, "activated", 0, hidden_width.size)
                                         : w.compute_value("activated", w.extents.tokens(), hidden_width);
    if (swiglu)
        w.add<SiluProduct>({.y = activated, .gate = gate, .x = up});
    else
        w.add<Activate>({.y = activated, .x = up}, activation);
    layer.out = into_stream(w, w.linear("mlp.down", activated,
                                        {.outputs = w.extents.width(),
                                         .inputs = hidden_width,
                                         .init = down_init,
                                         .bias = bias,
                                         .fan_in = hidden_size,
                                         .meaning = "W h is added to the stream",
                                         .fp8 = down_fp8,
                                         .addend = layer.addend}));
}

}  // namespace speedrun
