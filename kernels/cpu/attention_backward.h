// Attention backward over the tiles of an item, in the order of attention_forward.h. Probabilities are
// recomputed from the log-sums.
#pragma once

#include "kernels/cpu/attention_strip.h"

namespace speedrun::cpu {

// Scratch memory of the backward pass of an item.
template <class Kind>
struct BackwardMemory {
    typename Kind::Word *key_lines, *value_lines, *keys, *queries, *upstream;
    float *scores, *products, *query_sums, *key_sums, *value_sums, *deltas;
    typename Kind::Gradients gradients;
    int64_t bytes;

    BackwardMemory(const op::AttentionBackward& a, void* memory) : BackwardMemory(a, Scratch(memory)) {}

  private:
    BackwardMemory(const op::AttentionBackward& a, Scratch scratch) : gradients(scratch) {
        const AttentionRows counts = attention_rows(a);
        const int64_t width = round_up(a.options.head_dim, kLanes),
                      value_width = round_up(value_dim_of(a.v, a.options), kLanes);
        key_lines = scratch.take<typename Kind::Word>(kTile * width / Kind::kPerWord);
        value_lines = scratch.take<typename Kind::Word>(kTile * value_width / Kind::kPerWord);
        keys = scratch.take<typename Kind::Word>(Kind::Head::words(counts.keys, width));
        queries = scratch.take<typename Kind::Word>(Kind::Head::words(counts.queries, width));
        upstream = scratch.take<typename Kind::Word>(Kind::Head::words(counts.queries, value_width));
        scores = scratch.take<float>(Kind::kStrip * kTile);
        products = scratch.take<float>(Kind::kStrip * kTile);
        query_sums = scratch.take<float>(counts.queries * width);
        key_sums = scratch.take<float>(kTile * width);
        value_sums = scratch.take<float>(kTile * value_width);
        deltas = scratch.take<float>(counts.queries);
        bytes = scratch.bytes();
    }
};

// A tile of queries [i0, i1) by keys [j0, j1) of one head: computes the gradients of probabilities and adds
// to dq.
template <class Kind>
class BackwardTile {
  public:
    using Head = typename Kind::Head;
    BackwardTile(const AttentionItem& item, const BackwardMemory<Kind>& memory, const Head& queries,
                 const Head& keys, const Head& upstream, const float* log_sums)
        : item_(item),
          m_(memory),
          gradients_(memory.gradients),
          queries_(queries),
          keys_(keys),
          upstream_(upstream),
          log_sums_(log_sums) {}

    void run(Range i, Range j) {
        constexpr int64_t kStrip = Kind::kStrip;
        for (int64_t first = i.begin; first < i.end; first += kStrip)
            query_strip(first, std::min(kStrip, i.end - first), i.begin, j.begin);
        for (int64_t first = j.begin; first < j.end; first += kStrip)
            key_strip(first, std::min(kStrip, j.end - first), i, j.begin);
    }

  private:
    static auto add_to(float* sums, int64_t width) {
        return [=](int64_t r, int64_t vector, Vec x) {
            float* to = sums + r * width + vector * kLanes;
            store(to, load(to) + x);
        };
    }

    void query_strip(int64_t i, int64_t rows, int64_t i0, int64_t j0) {
        const View view(item_, item_.low_range(i, i + rows), i, rows, j0, Kind::kDepth);
        const int64_t first = view.empty() ? kTile : view.begin,
                      end = view.empty() ? kTile : round_up(view.end, kLanes);
        if (!view.empty()) {
            const auto keep = [&](float* to, Vec factor) {
                return [=](int64_t r, int64_t vector, Vec x) {
                    store(to + r * kTile + first + vector * kLanes, factor * x);
                };
            };
            const int64_t vectors = (end - first) / kLanes;
            product<Kind>(rows, vectors, queries_.left(i), m_.key_lines + first, kTile,
                          item_.o.head_dim / Kind::kPerWord, keep(m_.scores, item_.o.scale));
            product<Kind>(rows, vectors, upstream_.left(i), m_.value_lines + first, kTile,
                          item_.value_dim / Kind::kPerWord, keep(m_.products, 1.0f));
        }
        for (int64_t r = 0; r < rows; r += 2) {
            for (int64_t j = 0; j < first; j += kLanes) gradients_.keep(i - i0 + r, j, kNone, kNone);
            for (int64_t j = first; j < end; j += kLanes) {
                Vec p[2], g[2];
                for (int64_t e = 0; e < std::min<int64_t>(2, rows - r); ++e) {
                    const int64_t at = (r + e) * kTile + j, query = i + r + e;
                    Vec score = load(m_.scores + at);
                    if (!view.clear(j)) score = Edge(item_, query, j0).hide(score, j);
                    p[e] = exp(score - log_sum_of(query));
                    g[e] = p[e] * (load(m_.products + at) - m_.deltas[query]);
                }
                gradients_.keep(i - i0 + r, j, p, g);
            }
            for (int64_t j = end; j < kTile; j += kLanes) gradients_.keep(i - i0 + r, j, kNone, kNone);
        }
        if (view.empty()) return;
        product<Kind>(rows, item_.width / kLanes, gradients_.gradients_by_query(i - i0, first),
                      keys_.panel(j0 + first), keys_.stride(), ceil_div(view.end - first, Kind::kPerWord),
                      add_to(m_.query_sums + i * item_.width, item_.width));
    }

    // Adds to dk and dv of the keys [j, j + rows), from the queries of the tile that may see one of them.
    void key_strip(int64_t j, int64_t rows, Range queries, int64_t j0) {
        int64_t begin = std::max(queries.begin, item_.first_query(j) / kPair * kPair), end = queries.end;
        while (begin < end && item_.low(end - 1) >= j + rows) --end;
        if (begin >= end) return;
        const int64_t words = round_up(end - begin, Kind::kDepth) / Kind::kPerWord, i = begin - queries.begin;
        const int64_t width = item_.width, value_width = item_.value_width;
        product<Kind>(rows, value_width / kLanes, gradients_.probabilities_by_key(i, j - j0),
                      upstream_.panel(begin), upstream_.stride(), words,
                      add_to(m_.value_sums + (j - j0) * value_width, value_width));
        product<Kind>(rows, width / kLanes, gradients_.gradients_by_key(i, j - j0), queries_.panel(begin),
                      queries_.stride(), words, add_to(m_.key_sums + (j - j0) * width, width));
    }

    // A query without keys has log-sum −∞; its probabilities must still be 0.
    float log_sum_of(int64_t query) const { return log_sums_[query] == kMasked ? 0.0f : log_sums_[query]; }

    static constexpr int64_t kPair = 2;
    const Vec kNone[kPair] = {};
    const AttentionItem& item_;
    const BackwardMemory<Kind>& m_;
    typename Kind::Gradients gradients_;
    const Head &queries_, &keys_, &upstream_;
    const float* log_sums_;
};

template <class Kind>
void attention_backward(const AttentionItem& item, const op::AttentionBackward& a,
                        const BackwardMemory<Kind>& memory) {
    using Real = typename Kind::Real;
    const int64_t width = item.width, value_width = item.value_width;
    const Range all_queries{0, item.counts.queries}, all_keys{0, item.counts.keys};
    const HeadRows k = item.keys(a.k), v = item.keys(a.v), dq = item.queries(a.dq), dk = item.keys(a.dk),
                   dv = item.keys(a.dv), dout = item.queries(a.dout), o = item.queries(a.o);
    const typename Kind::Head queries(item.queries(a.q), all_queries, memory.queries),
        keys(k, all_keys, memory.keys), upstream(dout, all_queries, memory.upstream);
    for (int64_t i = 0; i < all_queries.end; ++i) {  // Σ do·o of each query
        Vec dots{};
        const Real *gradient = dout.row<Real>(i), *output = o.row<Real>(i);
        for_vectors(dout.x.cols(), [&](int64_t d, auto part) {
            dots = fma(load(gradient + d, part), load(output + d, part), dots);
        });
        memory.deltas[i] = sum(dots);
    }
    std::fill(memory.query_sums, memory.query_sums + all_queries.end * width, 0.0f);
    for (int64_t i = 0; i < item.first_query(0); ++i)  // queries before all keys
        dq.write<Real>(i, memory.query_sums + i * width, 0.0f);
    BackwardTile<Kind> tile(item, memory, queries, keys, upstream, item.log_sums(a.lse));
    for (int64_t j0 = 0; j0 < all_keys.end; j0 += kTile) {
        const int64_t j1 = std::min(j0 + kTile, all_keys.end);
        // Queries at places of this tile see no key after it.
        const Range last{item.first_query(j0), item.first_query(j1)};
        dq.expect<Real, true>(last);
        for (const HeadRows& gradient : {dk, dv}) gradient.expect<Real, true>({j0, j1});
        Kind::pack_lines(memory.key_lines, k, j0, j1 - j0);
        Kind::pack_lines(memory.value_lines, v, j0, j1 - j0);
        std::fill(memory.key_sums, memory.key_sums + kTile * width, 0.0f);
        std::fill(memory.value_sums, memory.value_sums + kTile * value_width, 0.0f);
        for (int64_t i0 = last.begin / kTile * kTile; i0 < all_queries.end; i0 += kTile) {
            const int64_t i1 = std::min(i0 + kTile, all_queries.end);
            if (item.low_range(std::max(i0, last.begin), i1).begin < j1) tile.run({i0, i1}, {j0, j1});
        }
        for (int64_t j = j0; j < j1; ++j) {
            dk.write<Real>(j, memory.key_sums + (j - j0) * width, item.o.scale);
            dv.write<Real>(j, memory.value_sums + (j - j0) * value_width, 1.0f);
        }
        for (int64_t i = last.begin; i < last.end; ++i)
            dq.write<Real>(i, memory.query_sums + i * width, item.o.scale);
    }
}

}  // namespace speedrun::cpu
