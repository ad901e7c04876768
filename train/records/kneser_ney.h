// Interpolated modified Kneser-Ney: a table of counts that estimates the next token, without gradient or training. Source: Chen &
// Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", TR-10-98, Harvard 1998, section 4.
//
// A context h has k = 0 ... n tokens, n being the order. h' is h without its first token. V is the size of the vocabulary.
//
//   p_k(w|h) = max(c(hw) - D_k(c(hw)), 0) / c(h.)  +  (sum over w' of D_k(c(hw'))) / c(h.) * p_{k-1}(w|h').
//   p_{-1}(w) = 1 / V.
//
// For k = n, c(hw) is the number of times that hw occurs. For k < n, c(hw) is the number of distinct tokens before hw. The sum of
// c(hw) over w is c(h.). Where c(h.) is 0, p_k is p_{k-1}. n_r is the number of hw of k+1 tokens with c(hw) = r. The discounts are
//
//   Y = n_1 / (n_1 + 2 n_2).
//   D_k(0) = 0.
//   D_k(r) = r - (r+1) Y n_{r+1} / n_r for r = 1, 2, 3.
//   D_k(r) = D_k(3) for r > 3.
//
// For a small text they may be undefined: n_1, n_2 or n_3 is 0, or a discount is outside [0, r]. Its level then has the
// discounts 0.5, 1 and 1.5, the defaults of KenLM's --discount_fallback. Losses are in nats. Time and memory are linear in tokens
// and in the order.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace speedrun {

inline constexpr int kMaxContextTokens = 12;

class KneserNey {
  public:
    // Counts n-grams of up to order + 1 tokens in each text; none crosses from one text to the next. One thread; equal texts
    // have bitwise equal results. Throws a usage error if the order is not in [1, kMaxContextTokens], the vocabulary not in
    // [1, 65536], or there are too many tokens; a data error for texts without a token, or with one that is not below
    // vocab_size.
    KneserNey(int order, const std::vector<std::span<const uint16_t>>& texts, int32_t vocab_size);

    // Returns the probability of `token` (below vocab_size) after the last `order` tokens of this context.
    double probability(std::span<const uint16_t> context, uint16_t token) const;

    // Returns the sum of -log p, in nats, over all tokens of the row except the first, each given the row's previous tokens.
    double loss_sum(std::span<const uint16_t> row) const;

    int order() const { return static_cast<int>(levels_.size()) - 1; }
    int64_t num_contexts() const;  // contexts of 0 ... order tokens with a following token
    // D(1), D(2), D(3) for contexts of k tokens.
    std::array<double, 3> discounts(int k) const { return levels_[static_cast<size_t>(k)].discounts; }

  private:
    static constexpr uint32_t kNone = UINT32_MAX;

    // A map from (context, token) to the n-gram that they form.
    class Table {
      public:
        struct Entry {
            uint64_t key;
            uint32_t id;
        };
        explicit Table(size_t expected);
        uint32_t find(uint64_t key) const;         // kNone: not there
        uint32_t find_or_add(const Entry& entry);  // the stored id of the key, else adds the entry

      private:
        size_t slot_of(uint64_t key) const;
        void grow();
        std::vector<uint64_t> keys_;
        std::vector<uint32_t> ids_;
        size_t used_ = 0;
        int shift_ = 0;
    };

    // Contexts of k tokens, and n-grams of k+1 tokens: these are the contexts of the next level.
    struct Level {
        explicit Level(size_t expected) : table(expected) {}
        Table table;
        std::vector<uint32_t>
            only;  // n-gram of each context that occurs once (kNone: nothing follows); kInTable for others
        std::vector<uint16_t> token;  // last one of each n-gram
        std::vector<double> term;     // max(c - D, 0) / c(h.) of each n-gram
        std::vector<double> rest;     // factor of p_{k-1} for each context; -1: c(h.) is 0
        std::array<double, 3> discounts{};
    };
    struct Types;  // n-grams of a level during counting
    static constexpr uint32_t kInTable = UINT32_MAX - 1;

    static uint32_t find(const Level& level, uint32_t context, uint16_t token);
    static void weigh(Level& level, const Types& types, size_t num_contexts);
    // Updates contexts[k], the ids of the last k tokens, by the next token. Returns its probability.
    double step(std::array<uint32_t, kMaxContextTokens + 2>& contexts, uint16_t token) const;
    void start(std::array<uint32_t, kMaxContextTokens + 2>& contexts) const;

    std::vector<Level> levels_;  // index: k
    double uniform_ = 0;
};

}  // namespace speedrun
