#include "train/records/kneser_ney.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int64_t kMaxCountedTokens = int64_t{1}
                                      << 28;  // about 100 bytes per token and order in the worst case
constexpr std::array<double, 3> kFallback = {0.5, 1.0, 1.5};
constexpr uint64_t kEmpty = UINT64_MAX;  // unused slot; contexts are below 2^28

uint64_t key_of(uint32_t context, uint16_t token) {
    return uint64_t{context} << 16 | token;
}

std::array<double, 3> discounts_of(const std::array<int64_t, 5>& n) {
    if (n[1] == 0 || n[2] == 0 || n[3] == 0) return kFallback;
    std::array<double, 3> result{};
    const double y = static_cast<double>(n[1]) / static_cast<double>(n[1] + 2 * n[2]);
    for (size_t r = 1; r <= 3; ++r) {
        const auto count = static_cast<double>(r);
        const double d = count - (count + 1) * y * static_cast<double>(n[r + 1]) / static_cast<double>(n[r]);
        if (d < 0 || d > count) return kFallback;
        result[r - 1] = d;
    }
    return result;
}

}  // namespace

KneserNey::Table::Table(size_t expected) {
    const size_t slots = std::bit_ceil(std::max<size_t>(16, 2 * expected));
    keys_.assign(slots, kEmpty);
    ids_.resize(slots);
    shift_ = 64 - std::countr_zero(slots);
}

size_t KneserNey::Table::slot_of(uint64_t key) const {
    uint64_t mixed = key * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: Knuth's multiplicative hashing
    mixed = (mixed ^ (mixed >> 32)) * 0x9e3779b97f4a7c15;
    return mixed >> shift_;
}

uint32_t KneserNey::Table::find(uint64_t key) const {
    for (size_t i = slot_of(key);; i = (i + 1) & (keys_.size() - 1)) {
        if (keys_[i] == key) return ids_[i];
        if (keys_[i] == kEmpty) return kNone;
    }
}

uint32_t KneserNey::Table::find_or_add(const Entry& entry) {
    const auto [key, id] = entry;
    for (size_t i = slot_of(key);; i = (i + 1) & (keys_.size() - 1)) {
        if (keys_[i] == key) return ids_[i];
        if (keys_[i] != kEmpty) continue;
        keys_[i] = key;
        ids_[i] = id;
        if (2 * ++used_ > keys_.size()) grow();
        return id;
    }
}

void KneserNey::Table::grow() {
    Table larger(keys_.size());
    for (size_t i = 0; i < keys_.size(); ++i) {
        if (keys_[i] != kEmpty) larger.find_or_add({keys_[i], ids_[i]});
    }
    *this = std::move(larger);
}

struct KneserNey::Types {
    std::vector<uint32_t> context,
        suffix;  // n-grams of the previous level: without the last token, without the first
    std::vector<uint32_t> occurrences, counts;  // counts: c(hw) of the formula

    size_t size() const { return context.size(); }
    // Adds a new n-gram.
    uint32_t add(uint32_t context_id, uint32_t suffix_id) {
        context.push_back(context_id);
        suffix.push_back(suffix_id);
        occurrences.push_back(0);
        return static_cast<uint32_t>(size() - 1);
    }
};

KneserNey::KneserNey(int order, const std::vector<std::span<const uint16_t>>& texts, int32_t vocab_size) {
    if (order < 1 || order > kMaxContextTokens)
        throw_usage("order {}: contexts of 1 to {} tokens can be counted", order, kMaxContextTokens);
    if (vocab_size < 1 || vocab_size > 65536)
        throw_usage("a vocabulary of {} tokens, counts are made of 1 to 65536", vocab_size);
    int64_t tokens = 0;
    for (const auto text : texts) {
        tokens += static_cast<int64_t>(text.size());
        for (const uint16_t token : text)
            if (token >= vocab_size) throw_data("a token {} in a vocabulary of {}", token, vocab_size);
    }
    if (tokens == 0) throw_data("no tokens to count");
    if (tokens > kMaxCountedTokens)
        throw_usage("{} tokens, counts are made of at most {}", tokens, kMaxCountedTokens);
    uniform_ = 1.0 / vocab_size;

    // N-gram of the previous level that ends at each position; kNone if the text is too short.
    std::vector<std::vector<uint32_t>> ends;
    for (const auto text : texts) ends.emplace_back(text.size(), 0);
    Types before;  // the empty n-gram
    before.add(kNone, kNone);
    before.occurrences[0] = static_cast<uint32_t>(tokens);
    for (int k = 0; k <= order; ++k) {
        Level level(std::min<size_t>(before.size() * 2, static_cast<size_t>(tokens)));
        level.only.assign(before.size(), kInTable);
        for (size_t i = 0; i < before.size(); ++i)
            if (before.occurrences[i] == 1) level.only[i] = kNone;
        Types types;
        for (size_t t = 0; t < texts.size(); ++t) {
            uint32_t context = k == 0 ? 0 : kNone;  // context that ends before this position
            for (size_t i = 0; i < texts[t].size(); ++i) {
                const uint32_t suffix = ends[t][i];
                uint32_t id = kNone;
                if (context != kNone) {
                    const uint16_t token = texts[t][i];
                    const auto next = static_cast<uint32_t>(types.size());
                    if (level.only[context] == kNone)
                        level.only[context] = id = next;
                    else
                        id = level.table.find_or_add({key_of(context, token), next});
                    if (id == next) {
                        types.add(context, suffix);
                        level.token.push_back(token);
                    }
                    ++types.occurrences[id];
                }
                ends[t][i] = id;
                if (k > 0) context = suffix;
            }
        }
        if (k > 0) {
            before.counts.assign(before.size(), 0);
            for (const uint32_t suffix : types.suffix) ++before.counts[suffix];
            weigh(levels_.back(), before, levels_.back().only.size());
        }
        levels_.push_back(std::move(level));
        before = std::move(types);
    }
    before.counts = before.occurrences;
    weigh(levels_.back(), before, levels_.back().only.size());
}

void KneserNey::weigh(Level& level, const Types& types, size_t num_contexts) {
    std::array<int64_t, 5> counts_of_counts{};
    std::vector<uint64_t> sums(num_contexts);
    for (size_t i = 0; i < types.size(); ++i) {
        if (types.counts[i] < counts_of_counts.size()) ++counts_of_counts[types.counts[i]];
        sums[types.context[i]] += types.counts[i];
    }
    level.discounts = discounts_of(counts_of_counts);
    level.term.resize(types.size());
    level.rest.assign(num_contexts, 0);
    for (size_t i = 0; i < types.size(); ++i) {
        const uint32_t count = types.counts[i];
        const double discount = count == 0 ? 0.0 : level.discounts[std::min<size_t>(count, 3) - 1];
        level.term[i] = count == 0 ? 0.0 : (count - discount) / static_cast<double>(sums[types.context[i]]);
        level.rest[types.context[i]] += discount;
    }
    for (size_t i = 0; i < num_contexts; ++i)
        level.rest[i] = sums[i] == 0 ? -1.0 : level.rest[i] / static_cast<double>(sums[i]);
}

uint32_t KneserNey::find(const Level& level, uint32_t context, uint16_t token) {
    const uint32_t only = level.only[context];
    if (only == kInTable) return level.table.find(key_of(context, token));
    return only != kNone && level.token[only] == token ? only : kNone;
}

void KneserNey::start(std::array<uint32_t, kMaxContextTokens + 2>& contexts) const {
    contexts.fill(kNone);
    contexts[0] = 0;  // the empty context
}

double KneserNey::step(std::array<uint32_t, kMaxContextTokens + 2>& contexts, uint16_t token) const {
    double p = uniform_;
    uint32_t longer = 0;  // the n-gram of the previous level with the token: the next step's context
    for (size_t k = 0; k < levels_.size(); ++k) {
        const uint32_t context = contexts[k];
        contexts[k] = longer;
        longer = kNone;
        if (context == kNone) break;  // longer ones are unknown too, as all parts of an n-gram are counted
        const Level& level = levels_[k];
        longer = find(level, context, token);
        if (level.rest[context] < 0) continue;
        p = (longer == kNone ? 0.0 : level.term[longer]) + level.rest[context] * p;
    }
    return p;
}

double KneserNey::probability(std::span<const uint16_t> context, uint16_t token) const {
    std::array<uint32_t, kMaxContextTokens + 2> contexts{};
    start(contexts);
    const size_t length = std::min(context.size(), static_cast<size_t>(order()));
    for (const uint16_t t : context.last(length)) step(contexts, t);
    return step(contexts, token);
}

double KneserNey::loss_sum(std::span<const uint16_t> row) const {
    std::array<uint32_t, kMaxContextTokens + 2> contexts{};
    start(contexts);
    double sum = 0;
    for (size_t i = 0; i < row.size(); ++i) {
        const double p = step(contexts, row[i]);
        if (i > 0) sum -= std::log(p);
    }
    return sum;
}

int64_t KneserNey::num_contexts() const {
    int64_t count = 0;
    for (const Level& level : levels_)
        count += std::count_if(level.rest.begin(), level.rest.end(), [](double rest) { return rest >= 0; });
    return count;
}

}  // namespace speedrun
