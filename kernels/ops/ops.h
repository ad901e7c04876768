// THE list of operations: maths, shapes and element types of each, once. A backend implements all of them.
//
// Legend: T tokens (rows of all sequences, flattened) · S sequence length · C model width · H heads · D head
// size · V vocabulary (padded) · M, N, K sizes of a matrix product.
// Types: "real" is the compute type, f32 or bf16, the same for all real arguments of a call; sums, statistics
// and losses are f32. An argument marked "optional" may be an absent Tensor{}. Every operation is enqueued on
// the stream and returns at once; sizes are checked before that, by throwing. Every operation is
// deterministic: same inputs, same bits, whatever the number of threads. Outputs first, then inputs, sizes
// and options, the stream last. Gradients named dX; "accumulate" adds to what the output holds, otherwise the
// output is overwritten.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

enum class NormKind : uint8_t { rmsnorm, layernorm };
enum class Activation : uint8_t { relu_squared, gelu_tanh };
enum class VectorNorm : uint8_t { one, two, three, infinity };  // p of (Σ|x|^p)^(1/p); infinity: max|x|

constexpr float kNormEpsilon = 1e-5f;  // GPT-2's; used by every norm here

struct MatmulOptions {
    bool transpose_a = false;  // a is stored K x M
    bool transpose_b = false;  // b is stored N x K
    bool accumulate = false;   // c += a b
};

// What a tensor x is mixed with: c₀·x + c₁·z.
struct MixWith {
    Tensor z;             // real, of the shape of x
    Tensor coefficients;  // f32 [2] in device memory
};

// The values of attention mixed with a value embedding z: mixed = c₀·v + c₁·z.
struct ValueMix {
    Tensor mixed;  // real [T,H·D], receives the sum; may be v
    Tensor v;      // real [T,H·D], rows may be strided
    MixWith mix;
};

struct RotaryOptions {
    int64_t num_heads = 0;
    int64_t head_dim = 0;    // even
    bool normalize = false;  // RMS-normalise each head's vector first (QK-norm)
    bool rotate = false;     // then rotate it by its position
};

struct AttentionOptions {
    int64_t sequence_length = 0;  // S; T is a multiple of it; no query sees a key of another sequence
    int64_t num_heads = 0;
    int64_t head_dim = 0;
    int64_t window = 0;  // keys that a query sees at most, itself included; 0: no limit
    float scale = 1.0f;  // of the products q·k
    // False promises that first_key is the start of every token's sequence: a library that cannot mask
    // documents may then serve.
    bool documents = true;
};

struct CrossEntropyOptions {
    int64_t vocab_size = 0;       // columns beyond it are padding: probability 0, gradient 0
    float softcap = 0.0f;         // c > 0: z becomes c·tanh(z/c)
    float gradient_scale = 1.0f;  // dlogits are of gradient_scale · Σ losses
};

struct AdamwOptions {
    float learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
    int64_t step = 1;  // counts from 1; for the bias correction
};

struct MuonMomentumOptions {
    float momentum = 0;
    bool nesterov = true;
};

struct NormuonOptions {
    float beta2 = 0;  // decay of the mean squares
};
constexpr float kNormuonEpsilon = 1e-8f;

struct MuonApplyOptions {
    float learning_rate = 0;  // with every multiplier already in it
    float weight_decay = 0;   // decoupled: parameter shrinks by learning_rate · weight_decay
    bool cautious = false;    // decay only where update · parameter >= 0
};

class Ops {
  public:
    virtual ~Ops() = default;

    // ---- embedding
    // ------------------------------------------------------------------------------------------- out[t] =
    // table[index[t]] (+ position_table[position[t]]).  out: real [T,C]; index, position: i32 [T]; table:
    // real [V,C]; position_table: real [P,C], optional.
    virtual void embedding_forward(Tensor out, Tensor index, Tensor table, Tensor position,
                                   Tensor position_table, Stream& stream) = 0;
    // order[1] = the t from 0 to T−1, sorted by index[t], equal ones in order of t; order[0] = index[t] of
    // those. order: i32 [2,T]; index: i32 [T], each in [0, limit).
    virtual void sort_ids(Tensor order, Tensor index, int64_t limit, Stream& stream) = 0;
    // dtable[v] (+)= Σ_{t: index[t]=v} dout[t], in an order that depends on index alone.  dtable: f32 [V,C];
    // order: what sort_ids made of index; dout: real [T,C].
    virtual void embedding_backward(Tensor dtable, Tensor order, Tensor dout, bool accumulate,
                                    Stream& stream) = 0;

    // ---- matrix products
    // ------------------------------------------------------------------------------------- c (+)= op(a)
    // op(b) (+ bias).  c: real or f32 [M,N]; a: real [M,K] or [K,M]; b: real [K,N] or [N,K]; bias: f32 [N],
    // optional, not with accumulate; a backend may round it to c's type first. Rows of each may be strided.
    // Sums in f32.
    virtual void matmul(Tensor c, Tensor a, Tensor b, Tensor bias, const MatmulOptions& options,
                        Stream& stream) = 0;
    // out[c] (+)= Σ_t x[t,c]: the gradient of a bias.  out: f32 [C]; x: real [T,C].
    virtual void column_sum(Tensor out, Tensor x, bool accumulate, Stream& stream) = 0;

    // ---- norms
    // ----------------------------------------------------------------------------------------------- s = x
    // (+ delta); y = norm(s) (· gain) (+ bias), over the last dimension. rmsnorm: s·rstd with rstd =
    // (mean(s²) + eps)^-½ (Zhang & Sennrich 2019, eq. 4); layernorm: (s − mean)·rstd with rstd = (var(s) +
    // eps)^-½ (Ba et al. 2016, eq. 4). y, x, delta, sum: real [T,C]; sum receives s and is given exactly when
    // delta is (it may alias x); gain, bias: f32 [C], optional; rstd, mean: f32 [T] (mean: layernorm only).
    virtual void norm_forward(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta,
                              Tensor gain, Tensor bias, NormKind kind, Stream& stream) = 0;
    // ds = J^T dy (+ dresidual); dgain (+)= Σ_t dy·ŝ; dbias (+)= Σ_t dy.  ds: real [T,C], may alias dresidual
    // or dy; dgain, dbias: f32 [C], given exactly when gain, bias were; s: the normed input; dresidual: real
    // [T,C], optional.
    virtual void norm_backward(Tensor ds, Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean,
                               Tensor rstd, Tensor gain, Tensor dresidual, bool accumulate, NormKind kind,
                               Stream& stream) = 0;
    // Norm of a sum that is mixed with z (the first embedding): entered = x (+ delta); s = c₀·entered + c₁·z;
    // y = norm(s) (· gain) (+ bias). entered and s are rounded to the real type before anything reads them,
    // as if sum, mix and norm were operations of their own. sum: real [T,C] receives s; entered: real [T,C],
    // receives x + delta and is given exactly when delta is (it may alias x, not sum). The rest as above.
    virtual void mix_norm_forward(Tensor y, Tensor sum, Tensor entered, Tensor mean, Tensor rstd, Tensor x,
                                  Tensor delta, const MixWith& mix, Tensor gain, Tensor bias, NormKind kind,
                                  Stream& stream) = 0;
    // ds = J^T dy (+ dresidual), rounded to the real type; dx = c₀·ds; dz = or += c₁·ds (accumulate_z); dc
    // (+)= (Σ ds·entered, Σ ds·z); dgain, dbias as above, which `accumulate` holds for as well as for dc.
    // dx, dz: real [T,C]; dx may alias dresidual or dy; dcoefficients: f32 [2]; s, entered: what the forward
    // stored (entered: its x where there was no delta).
    virtual void mix_norm_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dgain, Tensor dbias,
                                   Tensor dy, Tensor s, Tensor entered, const MixWith& mix, Tensor mean,
                                   Tensor rstd, Tensor gain, Tensor dresidual, bool accumulate,
                                   bool accumulate_z, NormKind kind, Stream& stream) = 0;

    // ---- pointwise
    // ------------------------------------------------------------------------------------------- y =
    // relu(x)² (So et al. 2021) or ½x(1 + tanh(√(2/π)(x + 0.044715x³))) (Hendrycks & Gimpel 2016).  real
    // [T,C].
    virtual void activation_forward(Tensor y, Tensor x, Activation activation, Stream& stream) = 0;
    // dx = dy · activation'(x); dx may alias dy.
    virtual void activation_backward(Tensor dx, Tensor dy, Tensor x, Activation activation,
                                     Stream& stream) = 0;
    // The gradients of y = c₀·x + c₁·z (a ValueMix): dc (+)= (Σ dy·x, Σ dy·z); dz = or += c₁·dy
    // (accumulate_z); dx = c₀·dy, may alias dy.  dy, x, z: real [T,C], rows may be strided; c, dc: f32 [2].
    virtual void mix_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dy, Tensor x, Tensor z,
                              Tensor coefficients, bool accumulate, bool accumulate_z, Stream& stream) = 0;
    // y = x + z.  real [T,C]; y may alias either.
    virtual void add(Tensor y, Tensor x, Tensor z, Stream& stream) = 0;

    // ---- attention
    // ------------------------------------------------------------------------------------------- For each
    // head's vector u of q and of k, in place: u ← u·(mean(u²) + eps)^-½ (normalize), then the pair (u_i,
    // u_{i+D/2}) is turned by the angle position·frequency_i (Su et al. 2021, eq. 34, halves as pairs). q, k:
    // real [T,H·D], rows may be strided; rstd: f32 [T,2H] (of q, then of k; normalize only); cos, sin: f32
    // [P,D/2]. In the same pass, where value.mixed is given, the mix of v; with neither normalize nor rotate
    // that is all.
    virtual void qk_norm_rotary_forward(Tensor q, Tensor k, Tensor rstd, Tensor cos, Tensor sin,
                                        Tensor position, const ValueMix& value, const RotaryOptions& options,
                                        Stream& stream) = 0;
    // dq, dk in place: gradients of the outputs become gradients of the inputs. q, k: the *outputs* of the
    // forward. (The value mix goes back through mix_backward: it shares no memory with q and k, and its sums
    // over all rows would put barriers into a kernel that has none.)
    virtual void qk_norm_rotary_backward(Tensor dq, Tensor dk, Tensor q, Tensor k, Tensor rstd, Tensor cos,
                                         Tensor sin, Tensor position, const RotaryOptions& options,
                                         Stream& stream) = 0;
    // o_i = Σ_j softmax_j(scale·q_i·k_j) v_j over the keys first_key[i] ≤ j ≤ i, i − j < window, per head;
    // lse_i is the log of the sum of exponentials.  q, k, v, o: real [T,H·D], rows may be strided; lse: f32
    // [H,T]; first_key: i32 [T], index of the first visible token (start of the document), within the
    // sequence of i. Flash attention: O(T) memory (Dao et al. 2022, algorithm 1).
    virtual void attention_forward(Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor first_key,
                                   const AttentionOptions& options, Stream& stream) = 0;
    // Gradients from do, recomputing the probabilities from lse (Dao et al. 2022, algorithm 4).
    virtual void attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor o, Tensor lse,
                                    Tensor q, Tensor k, Tensor v, Tensor first_key,
                                    const AttentionOptions& options, Stream& stream) = 0;

    // ---- loss
    // ------------------------------------------------------------------------------------------------
    // losses[t] = −log softmax(softcap(logits[t]))[targets[t]], 0 where targets[t] = −1; dlogits[t] =
    // gradient_scale · d losses[t] / d logits[t], in the same pass.  losses: f32 [T]; logits, dlogits: real
    // [T,V]; dlogits optional, may alias logits; targets: i32 [T].
    virtual void cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                               const CrossEntropyOptions& options, Stream& stream) = 0;

    // ---- optimizers
    // ------------------------------------------------------------------------------------------ AdamW
    // (Loshchilov & Hutter 2019, algorithm 2) on g = grad·grad_scale; updates master and writes it, rounded,
    // to parameter. All f32 [n] but parameter: real [n], may be the master itself. grad_scale: f32 [1] in
    // device memory; if it is not finite nothing changes, so that a diverged step leaves the last good
    // parameters.
    virtual void adamw_step(Tensor parameter, Tensor master, Tensor first_moment, Tensor second_moment,
                            Tensor grad, Tensor grad_scale, const AdamwOptions& options, Stream& stream) = 0;
    // b ← μ·b + (1−μ)·g; update = (1−μ)·g + μ·b (nesterov) or b, with g = grad·grad_scale.  update: real [n];
    // momentum, grad: f32 [n]. Nothing changes if grad_scale is not finite (update becomes 0).
    virtual void muon_momentum(Tensor update, Tensor momentum, Tensor grad, Tensor grad_scale,
                               const MuonMomentumOptions& options, Stream& stream) = 0;
    // a = x xᵀ for each of n matrices.  a: real [n,R,R]; x: real [n,R,C].
    virtual void gram(Tensor a, Tensor x, Stream& stream) = 0;
    // Replaces each of n matrices by its orthogonal polar factor: divide by 1.02·‖X‖_F + 1e-6, then 5
    // iterations X ← aX + (bA + cA²)X, A = XXᵀ (Polar Express, Amsel et al. 2025, algorithm 1), on the side
    // that makes A smaller. x: real [n,R,C]; workspace: real, polar_express_workspace(n, R, C) elements.
    virtual void polar_express(Tensor x, Tensor workspace, Stream& stream) = 0;
    static int64_t polar_express_workspace(int64_t n, int64_t rows, int64_t cols);
    // NorMuon (Li et al. 2025, algorithm 1) with lines of either direction: for each of n matrices and each
    // line i, a row where R ≥ C and a column elsewhere: v_i ← β₂·v_i + (1−β₂)·mean(u_i²), u_i ← u_i/(√v_i +
    // 1e-8); then all of u is scaled to the Frobenius norm that it had (a correction of v's bias would cancel
    // there). A matrix of zeros stays one. update: u, real [n,R,C], in place, rounded once; second_moment: v,
    // f32 [n,max(R,C)]. grad_scale as above: nothing changes if it is not finite.
    virtual void normuon_scale(Tensor update, Tensor second_moment, Tensor grad_scale,
                               const NormuonOptions& options, Stream& stream) = 0;
    // master ← master − lr·(update + wd·master [where cautious allows]); parameter = rounded master.
    // grad_scale as above.
    virtual void muon_apply(Tensor parameter, Tensor master, Tensor update, Tensor grad_scale,
                            const MuonApplyOptions& options, Stream& stream) = 0;

    // ---- utilities
    // -------------------------------------------------------------------------------------------
    virtual void fill(Tensor x, float value, Stream& stream) = 0;
    virtual void scale(Tensor x, float factor, Stream& stream) = 0;  // x *= factor, any real
    virtual void cast(Tensor out, Tensor in, Stream& stream) = 0;    // between f32 and bf16, or a copy
    // What a piece of a vector has in its p-norm: Σ|x|^p or, of infinity, max|x|; 0 of an empty one, NaN if x
    // has one. out: f32 [1]; x: real [n].
    virtual void norm_term(Tensor out, Tensor x, VectorNorm norm, Stream& stream) = 0;
    virtual void sum(Tensor out, Tensor x, bool accumulate, Stream& stream) = 0;  // out: f32 [1]; x: f32 [n]
    virtual void count_nonfinite(Tensor out, Tensor x, Stream& stream) = 0;       // out: f32 [1]; x: real [n]
    // norm = (Σ terms)^(1/p) or, of infinity, max terms; coefficient = min(1, max_norm/norm), 1 if max_norm =
    // 0, NaN if norm is not finite. norm, coefficient: f32 [1]; terms: f32 [n], each of a norm_term, which a
    // NaN or infinity among them passes on to norm. (Pascanu et al. 2013, algorithm 1, for p = 2.)
    virtual void clip_coefficient(Tensor coefficient, Tensor norm, Tensor terms, float max_norm,
                                  VectorNorm kind, Stream& stream) = 0;
    // x[i] = mean-0 normal of this deviation, or uniform in ±bound: Philox4x32-10 of (seed, sequence; i), so
    // that an element's value depends on nothing but its index.  x: f32 [n], element i of it is element
    // offset+i of the parameter.
    virtual void random_normal(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, float deviation,
                               Stream& stream) = 0;
    virtual void random_uniform(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, float bound,
                                Stream& stream) = 0;

    // Floating-point operations of all matrix products and attention enqueued so far (multiply and add count
    // 2).
    virtual int64_t flops() const = 0;
    // What a user should know of how operations were carried out, one sentence each; may grow with every new
    // shape.
    virtual std::vector<std::string> notes() const { return {}; }
};

// The operations on this device's kind. The device must outlive them.
std::unique_ptr<Ops> make_cpu_ops(Device& device);

}  // namespace speedrun
