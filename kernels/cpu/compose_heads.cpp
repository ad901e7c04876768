// One attention map per token, mixed from the maps of its heads. Rows are processed one by one; a map has at
// most kMaxKeys keys and is kept whole. Backward first goes over queries and stores the mixed map and its
// gradient. Then it goes over keys: each adds up its queries in order.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::head_of;
using cpu::Vec;
using Map = float[ComposeHeadsOptions::kMaxKeys];  // one value per key that a query sees

struct Seen {
    int64_t first, count;  // range of keys or of queries
};

template <class Arguments>
Seen keys_of(const Arguments& a, int64_t i) {
    const int64_t begin = i - i % a.options.sequence_length;
    const int64_t first =
        std::max({begin, i - a.options.keys + 1, int64_t{a.first_key.template as<int32_t>()[i]}});
    return {first, std::max<int64_t>(0, i + 1 - first)};
}

float weight(const Tensor& w, int64_t t, int64_t head) {
    return w.as<float>()[(w.rank == 2 ? t * w.row_stride : 0) + head];
}

template <class Real>
float dot(const Real* x, const Real* y, int64_t count) {
    Vec products{};
    cpu::for_vectors(count, [&](int64_t d, auto width) {
        products = fma(cpu::load(x + d, width), cpu::load(y + d, width), products);
    });
    return cpu::sum(products);
}

float dot(const float* x, const float* y, Seen seen) {
    return dot(x, y, seen.count);
}

// out[j] = factor·(x·row j of y)
template <class Real>
void dots(float* out, const Real* x, const Tensor& y, Seen rows, int64_t column, int64_t dim, float factor) {
    for (int64_t j = 0; j < rows.count; ++j)
        out[j] = factor * dot(x, head_of<Real>(y, rows.first + j, column), dim);
}

// to (+)= factor·Σ_j weights[j]·(row j of x)
template <class Real>
void add_rows(Real* to, const float* weights, const Tensor& x, Seen rows, int64_t column, int64_t dim,
              float factor, bool accumulate) {
    cpu::for_vectors(dim, [&](int64_t d, auto width) {
        Vec total{};
        for (int64_t j = 0; j < rows.count; ++j)
            total = fma(weights[j], cpu::load(head_of<Real>(x, rows.first + j, column) + d, width), total);
        total *= factor;
        if (accumulate) total += cpu::load(to + d, width);
        cpu::store(to + d, total, width);
    });
}

// Softmax of scores in place. Returns log Σ exp(score).
float softmax(float* scores, int64_t count) {
    if (count == 0) return 0;
    const float largest = *std::max_element(scores, scores + count);
    Vec sums{};
    cpu::for_vectors(count, [&](int64_t j, auto width) {
        const Vec e = cpu::keep(exp(cpu::load(scores + j, width) - largest), width);
        sums += e;
        cpu::store(scores + j, e, width);
    });
    const float total = cpu::sum(sums);
    cpu::for_vectors(count, [&](int64_t j, auto width) {
        cpu::store(scores + j, cpu::load(scores + j, width) * (1.0f / total), width);
    });
    return largest + std::log(total);
}

void add_scaled(float* to, const float* x, int64_t count, float factor) {
    cpu::for_vectors(count, [&](int64_t j, auto width) {
        cpu::store(to + j, fma(factor, cpu::load(x + j, width), cpu::load(to + j, width)), width);
    });
}

// (mean_h(w1²) + epsilon)^-½ of a token.
template <class Arguments>
float rstd_of(const Arguments& a, int64_t t) {
    float square = 0;
    for (int64_t h = 0; h < a.options.num_heads; ++h) {
        const float w = weight(a.w1, t, h);
        square = std::fma(w, w, square);
    }
    return 1.0f / std::sqrt(square / static_cast<float>(a.options.num_heads) + a.options.epsilon);
}

template <class Real>
void forward_row(const op::ComposeHeadsForward& a, int64_t i) {
    const int64_t dim = a.options.head_dim;
    const Seen seen = keys_of(a, i);
    const float rstd = rstd_of(a, i);
    Map map, mixed;
    std::fill(mixed, mixed + seen.count, 0.0f);
    for (int64_t h = 0; h < a.options.num_heads; ++h) {
        dots(map, head_of<Real>(a.q, i, h * dim), a.k, seen, h * dim, dim, a.options.scale);
        softmax(map, seen.count);
        add_scaled(mixed, map, seen.count, weight(a.w1, i, h) * rstd);
    }
    for (int64_t h = 0; h < a.options.num_heads; ++h)
        add_rows(head_of<Real>(a.c, i, h * dim), mixed, a.v, seen, h * dim, dim, weight(a.w2, i, h), false);
}

// Results of the pass over queries that the pass over keys reads.
struct Kept {
    float *mixed, *dmixed;  // A and B, [T][keys], from each query's first key on
    float *lse, *u, *e;     // [T][H]
    float* partial;         // [kReductionChunks][2][H], for weights that all tokens share

    Kept(float* memory, int64_t rows, const ComposeHeadsOptions& o)
        : mixed(memory),
          dmixed(mixed + rows * o.keys),
          lse(dmixed + rows * o.keys),
          u(lse + rows * o.num_heads),
          e(u + rows * o.num_heads),
          partial(e + rows * o.num_heads) {}
    static int64_t bytes(int64_t rows, const ComposeHeadsOptions& o) {
        return int64_t{sizeof(float)} *
               (2 * rows * o.keys + 3 * rows * o.num_heads + 2 * cpu::kReductionChunks * o.num_heads);
    }
};

void store_gradient(const Tensor& gradient, int64_t t, int64_t head, float value, bool accumulate,
                    float* partial) {
    if (gradient.rank != 2) {
        partial[head] += value;
        return;
    }
    float& to = gradient.as<float>()[t * gradient.row_stride + head];
    to = accumulate ? to + value : value;
}

// maps: [H][kMaxKeys].
template <class Real>
void backward_query(const op::ComposeHeadsBackward& a, const Kept& kept, int64_t i, float* maps,
                    float* partial) {
    const int64_t dim = a.options.head_dim, heads = a.options.num_heads;
    const Seen seen = keys_of(a, i);
    float *mixed = kept.mixed + i * a.options.keys, *dmixed = kept.dmixed + i * a.options.keys;
    float *u = kept.u + i * heads, *e = kept.e + i * heads;
    const float rstd = rstd_of(a, i);
    std::fill(mixed, mixed + seen.count, 0.0f);
    std::fill(dmixed, dmixed + seen.count, 0.0f);
    for (int64_t h = 0; h < heads; ++h) {
        float* map = maps + h * ComposeHeadsOptions::kMaxKeys;
        dots(map, head_of<Real>(a.q, i, h * dim), a.k, seen, h * dim, dim, a.options.scale);
        kept.lse[i * heads + h] = softmax(map, seen.count);
        u[h] = weight(a.w1, i, h) * rstd;
        add_scaled(mixed, map, seen.count, u[h]);
    }
    Map products;
    for (int64_t h = 0; h < heads; ++h) {
        dots(products, head_of<Real>(a.dc, i, h * dim), a.v, seen, h * dim, dim, 1.0f);
        add_scaled(dmixed, products, seen.count, weight(a.w2, i, h));
        store_gradient(a.dw2, i, h, dot(mixed, products, seen), a.accumulate_w2, partial + heads);
    }
    float along = 0;
    for (int64_t h = 0; h < heads; ++h) {
        float* map = maps + h * ComposeHeadsOptions::kMaxKeys;
        e[h] = dot(map, dmixed, seen);
        along = std::fma(e[h], u[h], along);
        cpu::for_vectors(seen.count, [&](int64_t j, auto width) {
            cpu::store(map + j, u[h] * cpu::load(map + j, width) * (cpu::load(dmixed + j, width) - e[h]),
                       width);
        });
        add_rows(head_of<Real>(a.dq, i, h * dim), map, a.k, seen, h * dim, dim, a.options.scale,
                 a.accumulate_q);
    }
    along /= static_cast<float>(heads);
    for (int64_t h = 0; h < heads; ++h)
        store_gradient(a.dw1, i, h, rstd * (e[h] - u[h] * along), a.accumulate_w1, partial);
}

template <class Real>
void backward_queries(const op::ComposeHeadsBackward& a, const Kept& kept, int64_t chunk) {
    const int64_t heads = a.options.num_heads;
    float* partial = kept.partial + chunk * 2 * heads;
    std::fill(partial, partial + 2 * heads, 0.0f);
    std::vector<float> maps(static_cast<size_t>(heads * ComposeHeadsOptions::kMaxKeys));
    const cpu::Range rows = cpu::chunk_of(a.dc.rows(), chunk, cpu::kReductionChunks);
    for (int64_t i = rows.begin; i < rows.end; ++i) backward_query<Real>(a, kept, i, maps.data(), partial);
}

template <class Real>
void backward_key(const op::ComposeHeadsBackward& a, const Kept& kept, int64_t j) {
    const int64_t dim = a.options.head_dim, heads = a.options.num_heads, length = a.options.sequence_length;
    const int64_t end = std::min(j + a.options.keys, (j / length + 1) * length);
    const Seen queries{j, end - j};
    Map scores, weights;
    for (int64_t h = 0; h < heads; ++h) {
        dots(scores, head_of<Real>(a.k, j, h * dim), a.q, queries, h * dim, dim, a.options.scale);
        for (int64_t n = 0; n < queries.count; ++n) scores[n] -= kept.lse[(j + n) * heads + h];
        cpu::for_vectors(queries.count, [&](int64_t n, auto width) {
            cpu::store(scores + n, exp(cpu::load(scores + n, width)), width);
        });
        for (int64_t n = 0; n < queries.count; ++n) {
            const int64_t i = j + n, place = j - keys_of(a, i).first;
            const int64_t at = i * a.options.keys + place, of_head = i * heads + h;
            const bool sees = place >= 0;
            weights[n] = sees ? kept.mixed[at] * weight(a.w2, i, h) : 0.0f;
            scores[n] = sees ? kept.u[of_head] * scores[n] * (kept.dmixed[at] - kept.e[of_head]) : 0.0f;
        }
        add_rows(head_of<Real>(a.dk, j, h * dim), scores, a.q, queries, h * dim, dim, a.options.scale,
                 a.accumulate_k);
        add_rows(head_of<Real>(a.dv, j, h * dim), weights, a.dc, queries, h * dim, dim, 1.0f, a.accumulate_v);
    }
}

}  // namespace

void CpuOps::enqueue(const op::ComposeHeadsForward& a, Stream& stream) {
    flops_ += 4 * a.options.num_heads * a.options.head_dim * visible_pairs(a.options, a.c.rows());
    cpu::submit(stream, "compose_heads_forward", [=] {
        cpu::with_real(a.c.dtype, [&]<class Real>() {
            cpu::parallel_for(a.c.rows(), [&](int64_t i) { forward_row<Real>(a, i); });
        });
    });
}

void CpuOps::enqueue(const op::ComposeHeadsBackward& a, Stream& stream) {
    const int64_t rows = a.dc.rows(), heads = a.options.num_heads;
    flops_ += 8 * heads * a.options.head_dim * visible_pairs(a.options, rows);
    const Kept kept(static_cast<float*>(workspace(stream, Kept::bytes(rows, a.options))), rows, a.options);
    cpu::submit(stream, "compose_heads_backward", [=] {
        cpu::with_real(a.dc.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks,
                              [&](int64_t chunk) { backward_queries<Real>(a, kept, chunk); });
            cpu::parallel_for(rows, [&](int64_t j) { backward_key<Real>(a, kept, j); });
        });
        if (a.w1.rank != 2)
            cpu::add_chunks(a.dw1.as<float>(), kept.partial, 2 * heads, heads, a.accumulate_w1);
        if (a.w2.rank != 2)
            cpu::add_chunks(a.dw2.as<float>(), kept.partial + heads, 2 * heads, heads, a.accumulate_w2);
    });
}

}  // namespace speedrun
