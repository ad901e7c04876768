#include "data/gpt2_tokenizer.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "data/gpt2_pieces.h"

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

    // Appends the tokens into which the single-byte tokens `bytes` merge.
    void merge(const std::vector<uint16_t>& bytes, std::vector<uint16_t>& out) {
        parts_.clear();
        heap_.clear();
        const auto size = static_cast<int32_t>(bytes.size());
        for (int32_t i = 0; i < size; ++i) parts_.push_back({bytes[i], true, i - 1, i + 1});
        for (int32_t i = 0; i + 1 < size; ++i) offer(i);
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end(), Later{});
            const Candidate best = heap_.back();
            heap_.pop_back();
            apply(best);
        }
        for (int32_t i = 0; i < size; i = parts_[i].next) out.push_back(parts_[i].token);
    }

  private:
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
        std::vector<uint16_t> tokens, bytes;
        tokens.reserve(text.size() / 3);
        Merger merger(merges_);
        while (!text.empty()) {
            const std::string_view piece = text.substr(0, gpt2_piece_length(text));
            text.remove_prefix(piece.size());
            if (const auto whole = whole_.find(piece); whole != whole_.end()) {
                tokens.push_back(whole->second);
                continue;
            }
            bytes.clear();
            for (const char c : piece) bytes.push_back(vocabulary_.of_byte[static_cast<unsigned char>(c)]);
            merger.merge(bytes, tokens);
        }
        return tokens;
    }

    std::string decode(std::span<const int32_t> tokens) const override {
        std::string text;
        for (const int32_t token : tokens) {
            if (token >= 0 && token < vocabulary_.size())
                text += vocabulary_.tokens[static_cast<size_t>(token)];
        }
        return text;
    }

  private:
    const BpeVocabulary vocabulary_;
    const MergeTable merges_;
    std::unordered_map<std::string_view, uint16_t> whole_;  // views of vocabulary_.tokens
};

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(BpeVocabulary vocabulary) {
    return std::make_unique<Gpt2Tokenizer>(std::move(vocabulary));
}

}  // namespace speedrun
