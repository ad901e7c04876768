#include "data/gpt2_tokenizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "data/gpt2_pieces.h"
#include "data/piece_cache.h"

namespace speedrun {

namespace {

constexpr uint32_t kNever = UINT32_MAX;  // rank of a pair that does not merge

// Maps pairs of tokens to their merge. An open-addressing hash table, because it is queried several times per byte.
class MergeTable {
  public:
    explicit MergeTable(const std::vector<BpeMerge>& merges)
        : slots_(std::bit_ceil(2 * merges.size() + 1)), mask_(slots_.size() - 1) {
        for (const BpeMerge& merge : merges) {
            Slot& slot = slots_[find(merge.left, merge.right)];
            slot = {key_of(merge.left, merge.right), merge.rank, merge.result};
        }
    }
    struct Merge {
        uint32_t rank;
        uint16_t result;
    };
    Merge operator()(uint16_t left, uint16_t right) const {
        const Slot& slot = slots_[find(left, right)];
        return {slot.rank, slot.result};
    }

  private:
    struct Slot {
        uint32_t key = 0, rank = kNever;  // an empty slot never merges
        uint16_t result = 0;
    };
    static uint32_t key_of(uint16_t left, uint16_t right) { return uint32_t{left} << 16 | right; }
    size_t find(uint16_t left, uint16_t right) const {
        const uint32_t key = key_of(left, right);
        size_t at = (key * uint64_t{0x9e3779b97f4a7c15u} >> 32) & mask_;  // Fibonacci hashing
        while (slots_[at].rank != kNever && slots_[at].key != key) at = (at + 1) & mask_;
        return at;
    }
    std::vector<Slot> slots_;
    size_t mask_;
};

// Merges the tokens of one piece. Reuses its memory for all pieces.
class Merger {
  public:
    explicit Merger(const MergeTable& merges) : merges_(merges) {}

    // Merges the single-byte tokens of a piece in their place. Returns the number of tokens left.
    size_t merge(std::span<uint16_t> tokens) {
        return tokens.size() <= kShort ? merge_short(tokens) : merge_long(tokens);
    }

  private:
    static constexpr size_t kShort = 48;  // bytes of pieces for which a search of all pairs is fast

    size_t merge_short(std::span<uint16_t> tokens) const {
        std::array<MergeTable::Merge, kShort> pairs;  // ranks of tokens i and i + 1
        size_t size = tokens.size();
        for (size_t i = 0; i + 1 < size; ++i) pairs[i] = merges_(tokens[i], tokens[i + 1]);
        while (size > 1) {
            size_t best = 0;
            for (size_t i = 1; i + 1 < size; ++i)
                if (pairs[i].rank < pairs[best].rank) best = i;
            if (pairs[best].rank == kNever) break;
            tokens[best] = pairs[best].result;
            --size;
            for (size_t i = best + 1; i < size; ++i) tokens[i] = tokens[i + 1];
            for (size_t i = best + 1; i + 1 < size; ++i) pairs[i] = pairs[i + 1];
            if (best > 0) pairs[best - 1] = merges_(tokens[best - 1], tokens[best]);
            if (best + 1 < size) pairs[best] = merges_(tokens[best], tokens[best + 1]);
        }
        return size;
    }
    size_t merge_long(std::span<uint16_t> tokens) {
        parts_.clear();
        heap_.clear();
        const auto size = static_cast<int32_t>(tokens.size());
        for (int32_t i = 0; i < size; ++i)
            parts_.push_back({tokens[static_cast<size_t>(i)], true, i - 1, i + 1});
        for (int32_t i = 0; i + 1 < size; ++i) offer(i);
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end(), Later{});
            const Candidate best = heap_.back();
            heap_.pop_back();
            apply(best);
        }
        size_t left = 0;
        for (int32_t i = 0; i < size; i = parts_[i].next) tokens[left++] = parts_[i].token;
        return left;
    }

    struct Part {  // node of a linked list
        uint16_t token;
        bool alive;
        int32_t previous, next;
    };
    struct Candidate {
        uint32_t rank;
        int32_t left;
        uint16_t left_token, right_token, result;
    };
    struct Later {  // lowest rank first, then leftmost
        bool operator()(const Candidate& a, const Candidate& b) const {
            return std::pair(a.rank, a.left) > std::pair(b.rank, b.left);
        }
    };

    void offer(int32_t left) {
        const uint16_t a = parts_[left].token, b = parts_[parts_[left].next].token;
        const MergeTable::Merge merge = merges_(a, b);
        if (merge.rank == kNever) return;
        heap_.push_back({merge.rank, left, a, b, merge.result});
        std::push_heap(heap_.begin(), heap_.end(), Later{});
    }
    void apply(const Candidate& candidate) {
        const auto size = static_cast<int32_t>(parts_.size());
        Part& left = parts_[candidate.left];
        if (!left.alive || left.token != candidate.left_token || left.next >= size) return;
        Part& right = parts_[left.next];
        if (right.token != candidate.right_token) return;  // merged since, and offered again
        left.token = candidate.result;
        left.next = right.next;
        right.alive = false;
        if (left.next < size) {
            parts_[left.next].previous = candidate.left;
            offer(candidate.left);
        }
        if (left.previous >= 0) offer(left.previous);
    }

    const MergeTable& merges_;
    std::vector<Part> parts_;
    std::vector<Candidate> heap_;
};

class Gpt2Tokenizer final : public Tokenizer {
  public:
    explicit Gpt2Tokenizer(BpeVocabulary vocabulary)
        : vocabulary_(std::move(vocabulary)), merges_(vocabulary_.merges) {
        if (!vocabulary_.whole_pieces) return;
        for (int32_t id = 0; id < vocabulary_.size(); ++id)
            whole_.emplace(vocabulary_.tokens[static_cast<size_t>(id)], static_cast<uint16_t>(id));
        whole_.erase("");
    }

    std::string_view name() const override { return "gpt2"; }
    int32_t vocab_size() const override { return vocabulary_.size(); }
    int32_t separator() const override { return vocabulary_.separator; }

    std::vector<uint16_t> encode(std::string_view text) const override {
        std::vector<uint16_t> tokens;
        Merger merger(merges_);
        append(text, true, {merger, nullptr}, tokens);
        return tokens;
    }
    std::unique_ptr<TextEncoder> encoder() const override;

    struct Scratch {
        Merger& merger;
        PieceCache* cache;  // null: none
    };
    // Appends the tokens of the pieces of `text`. Returns the number of bytes read: all if it is the end of the text.
    size_t append(std::string_view text, bool is_end, const Scratch& scratch,
                  std::vector<uint16_t>& tokens) const {
        // A byte is one token at most. An entry of the cache is copied whole.
        const size_t old = tokens.size();
        tokens.resize(old + text.size() + PieceCache::kMostTokens);
        uint16_t* out = tokens.data() + old;
        size_t done = 0;
        while (done < text.size()) {
            const std::string_view rest = text.substr(done);
            const size_t length = gpt2_next_piece(rest, is_end);
            if (length == 0) break;
            out += encode_piece(rest.substr(0, length), rest.size(), scratch, out);
            done += length;
        }
        tokens.resize(static_cast<size_t>(out - tokens.data()));
        return done;
    }
    const MergeTable& merges() const { return merges_; }

    std::string decode(std::span<const int32_t> tokens) const override {
        std::string text;
        for (const int32_t token : tokens) {
            if (token >= 0 && token < vocabulary_.size())
                text += vocabulary_.tokens[static_cast<size_t>(token)];
        }
        return text;
    }

  private:
    // Writes the tokens of a piece to `out`. Returns their number.
    size_t encode_piece(std::string_view piece, size_t readable, const Scratch& scratch,
                        uint16_t* out) const {
        if (!scratch.cache || piece.size() > PieceCache::kMostBytes)
            return merge_piece(piece, scratch.merger, out);
        const PieceCache::Key key = PieceCache::key_of(piece, readable);
        if (const PieceCache::Entry* entry = scratch.cache->find(key)) {
            std::copy(entry->tokens.begin(), entry->tokens.end(), out);
            return entry->count;
        }
        const size_t count = merge_piece(piece, scratch.merger, out);
        if (count <= PieceCache::kMostTokens) scratch.cache->store(key, {out, count});
        return count;
    }
    size_t merge_piece(std::string_view piece, Merger& merger, uint16_t* out) const {
        if (const auto whole = whole_.find(piece); whole != whole_.end()) {
            *out = whole->second;
            return 1;
        }
        for (size_t i = 0; i < piece.size(); ++i)
            out[i] = vocabulary_.of_byte[static_cast<unsigned char>(piece[i])];
        return merger.merge({out, piece.size()});
    }

    const BpeVocabulary vocabulary_;
    const MergeTable merges_;
    std::unordered_map<std::string_view, uint16_t> whole_;  // views of vocabulary_.tokens
};

class Gpt2Encoder final : public TextEncoder {
  public:
    explicit Gpt2Encoder(const Gpt2Tokenizer& tokenizer)
        : tokenizer_(tokenizer), merger_(tokenizer.merges()) {}

    void add(std::string_view part, std::vector<uint16_t>& tokens) override {
        pending_ += part;
        encode(false, tokens);
    }
    void finish(std::vector<uint16_t>& tokens) override { encode(true, tokens); }

  private:
    void encode(bool is_end, std::vector<uint16_t>& tokens) {
        pending_.erase(0, tokenizer_.append(pending_, is_end, {merger_, &cache_}, tokens));
    }

    const Gpt2Tokenizer& tokenizer_;
    Merger merger_;
    PieceCache cache_;
    std::string pending_;  // text with pieces that depend on the next part
};

std::unique_ptr<TextEncoder> Gpt2Tokenizer::encoder() const {
    return std::make_unique<Gpt2Encoder>(*this);
}

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(BpeVocabulary vocabulary) {
    return std::make_unique<Gpt2Tokenizer>(std::move(vocabulary));
}

}  // namespace speedrun
