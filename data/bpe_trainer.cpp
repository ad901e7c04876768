#include "data/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "data/gpt2_alphabet.h"
#include "data/gpt2_pieces.h"

namespace speedrun {

namespace {

constexpr int64_t kLeastCount = 2;

uint32_t pair_of(uint16_t left, uint16_t right) {
    return uint32_t{left} << 16 | right;
}

class PairTrainer {
  public:
    PairTrainer(const PieceCounts& pieces, size_t vocab_size) : vocab_size_(vocab_size) {
        add_token("");  // <|endoftext|>
        for (const char byte : gpt2_byte_order()) {
            result_.of_byte[static_cast<unsigned char>(byte)] = static_cast<uint16_t>(result_.tokens.size());
            add_token(std::string(1, byte));
        }
        add_words(pieces);
        count_pairs();
    }

    BpeVocabulary train() {
        while (result_.tokens.size() < vocab_size_ && !queue_.empty()) {
            Candidate best = queue_.top();
            queue_.pop();
            const int64_t count = counts_[best.pair];
            if (best.count != count) {  // merges have removed some since
                best.count = count;
                queue_.push(best);
                continue;
            }
            if (count < kLeastCount) break;
            merge(best);
        }
        store_merges();
        return std::move(result_);
    }

  private:
    using Words = std::vector<uint32_t>;  // indices of words, ascending

    struct Word {  // tokens_[begin … begin + size)
        size_t begin;
        uint32_t size;
        int64_t count;
    };
    struct Candidate {
        int64_t count;
        uint32_t pair;
        uint32_t words;  // index of word lists: the words that had the pair when it was found
        bool operator<(const Candidate& other) const {
            return count != other.count ? count < other.count : pair > other.pair;
        }
    };
    struct Merge {
        uint32_t pair;
        uint16_t result;
    };

    void add_token(std::string bytes) {
        ids_.emplace(bytes, static_cast<uint16_t>(result_.tokens.size()));
        result_.tokens.push_back(std::move(bytes));
    }

    void add_words(const PieceCounts& pieces) {
        for (const auto& [piece, count] : pieces.counts()) {
            if (piece.size() < 2) continue;
            words_.push_back({tokens_.size(), static_cast<uint32_t>(piece.size()), count});
            for (const char byte : piece)
                tokens_.push_back(result_.of_byte[static_cast<unsigned char>(byte)]);
        }
    }

    void count_pairs() {
        for (uint32_t i = 0; i < words_.size(); ++i) {
            const std::span<uint16_t> word = tokens_of(words_[i]);
            for (size_t at = 0; at + 1 < word.size(); ++at)
                change(pair_of(word[at], word[at + 1]), words_[i].count, i);
        }
        push_found();
    }

    std::span<uint16_t> tokens_of(const Word& word) { return {tokens_.data() + word.begin, word.size}; }
    size_t bytes_of(uint16_t token) const { return result_.tokens[token].size(); }

    void change(uint32_t pair, int64_t count, uint32_t word) {
        counts_[pair] += count;
        if (count < 0) return;
        Words& words = found_[pair];
        if (words.empty() || words.back() != word) words.push_back(word);
    }

    // Queues the pairs that the last merge has formed.
    void push_found() {
        for (auto& [pair, words] : found_) {
            const int64_t count = counts_[pair];
            if (count <= 0) continue;
            queue_.push({count, pair, static_cast<uint32_t>(word_lists_.size())});
            word_lists_.push_back(std::move(words));
        }
        found_.clear();
    }

    void merge(const Candidate& best) {
        const auto left = static_cast<uint16_t>(best.pair >> 16),
                   right = static_cast<uint16_t>(best.pair & 0xffff);
        const std::string bytes = result_.tokens[left] + result_.tokens[right];
        const auto known = ids_.find(bytes);
        const uint16_t id =
            known != ids_.end() ? known->second : static_cast<uint16_t>(result_.tokens.size());
        if (known == ids_.end()) add_token(bytes);
        merges_.push_back({best.pair, id});
        const Words words = std::move(word_lists_[best.words]);
        for (const uint32_t word : words) merge_in(word, merges_.back());
        push_found();
    }

    // Merges the pair in a word, from left to right.
    void merge_in(uint32_t index, const Merge& merge) {
        Word& word = words_[index];
        const std::span<uint16_t> tokens = tokens_of(word);
        const auto left = static_cast<uint16_t>(merge.pair >> 16),
                   right = static_cast<uint16_t>(merge.pair & 0xffff);
        const auto replace = [&](uint32_t old_pair, uint32_t new_pair, uint16_t other) {
            change(old_pair, -word.count, index);
            if (bytes_of(other) + bytes_of(merge.result) <= kMaxTokenBytes)
                change(new_pair, word.count, index);
        };
        size_t size = 0;
        for (size_t at = 0; at < tokens.size(); ++at) {
            if (at + 1 == tokens.size() || tokens[at] != left || tokens[at + 1] != right) {
                tokens[size++] = tokens[at];
                continue;
            }
            if (size > 0) {
                const uint16_t before = tokens[size - 1];
                replace(pair_of(before, left), pair_of(before, merge.result), before);
            }
            if (at + 2 < tokens.size()) {
                const uint16_t after = tokens[at + 2];
                replace(pair_of(right, after), pair_of(merge.result, after), after);
            }
            tokens[size++] = merge.result;
            ++at;
        }
        word.size = static_cast<uint32_t>(size);
    }

    // A pair that was merged twice has the rank of its last merge.
    void store_merges() {
        std::unordered_map<uint32_t, size_t> last;
        for (size_t i = 0; i < merges_.size(); ++i) last[merges_[i].pair] = i;
        for (size_t i = 0; i < merges_.size(); ++i) {
            if (last[merges_[i].pair] != i) continue;
            result_.merges.push_back({static_cast<uint16_t>(merges_[i].pair >> 16),
                                      static_cast<uint16_t>(merges_[i].pair & 0xffff), merges_[i].result,
                                      static_cast<uint32_t>(result_.merges.size())});
        }
    }

    const size_t vocab_size_;
    BpeVocabulary result_;
    std::unordered_map<std::string, uint16_t> ids_;
    std::vector<uint16_t> tokens_;  // tokens of all words
    std::vector<Word> words_;
    std::unordered_map<uint32_t, int64_t>
        counts_;  // counts of pairs; a merged pair keeps its count, as in the library
    std::unordered_map<uint32_t, Words> found_;  // pairs since the last merge, with their words
    std::vector<Words> word_lists_;
    std::priority_queue<Candidate> queue_;
    std::vector<Merge> merges_;
};

}  // namespace

void PieceCounts::add(std::string_view part) {
    pending_ += part;
    count(false);
}

void PieceCounts::end_document() {
    count(true);
}

void PieceCounts::count(bool is_end) {
    size_t done = 0;
    while (done < pending_.size()) {
        const std::string_view rest = std::string_view(pending_).substr(done);
        const size_t length = gpt2_next_piece(rest, is_end);
        if (length == 0) break;
        const std::string_view piece = rest.substr(0, length);
        if (const auto found = counts_.find(piece); found != counts_.end()) {
            ++found->second;
        } else {
            counts_.emplace(piece, 1);
        }
        done += length;
    }
    pending_.erase(0, done);
}

BpeVocabulary train_bpe(const PieceCounts& pieces, int32_t vocab_size) {
    return PairTrainer(pieces, static_cast<size_t>(vocab_size)).train();
}

}  // namespace speedrun
