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
        result_.tokens.emplace_back();  // <|endoftext|>
        for (const char byte : gpt2_byte_order()) {
            result_.of_byte[static_cast<unsigned char>(byte)] = static_cast<uint16_t>(result_.tokens.size());
            result_.tokens.emplace_back(1, byte);
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
    struct Change {
        uint32_t pair;
        int64_t count;  // negative: removed
        uint32_t word;
    };

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
                change({pair_of(word[at], word[at + 1]), words_[i].count, i});
        }
        push_found();
    }

    std::span<uint16_t> tokens_of(const Word& word) { return {tokens_.data() + word.begin, word.size}; }
    size_t bytes_of(uint16_t token) const { return result_.tokens[token].size(); }

    void change(const Change& change) {
        counts_[change.pair] += change.count;
        if (change.count < 0) return;
        Words& words = found_[change.pair];
        if (words.empty() || words.back() != change.word) words.push_back(change.word);
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
        // All words are merged alike, so no other pair forms the same bytes: the token is new.
        const auto id = static_cast<uint16_t>(result_.tokens.size());
        result_.tokens.push_back(result_.tokens[left] + result_.tokens[right]);
        result_.merges.push_back({left, right, id, static_cast<uint32_t>(result_.merges.size())});
        const Words words = std::move(word_lists_[best.words]);
        for (const uint32_t word : words) merge_in(word, result_.merges.back());
        push_found();
    }

    // Merges the pair in a word, from left to right.
    void merge_in(uint32_t index, const BpeMerge& merge) {
        Word& word = words_[index];
        const std::span<uint16_t> tokens = tokens_of(word);
        const uint16_t left = merge.left, right = merge.right;
        struct Neighbour {
            uint16_t token;
            uint32_t old_pair, new_pair;
        };
        const auto replace = [&](const Neighbour& beside) {
            change({beside.old_pair, -word.count, index});
            if (bytes_of(beside.token) + bytes_of(merge.result) <= kMaxTokenBytes)
                change({beside.new_pair, word.count, index});
        };
        size_t size = 0;
        for (size_t at = 0; at < tokens.size(); ++at) {
            if (at + 1 == tokens.size() || tokens[at] != left || tokens[at + 1] != right) {
                tokens[size++] = tokens[at];
                continue;
            }
            if (size > 0) {
                const uint16_t before = tokens[size - 1];
                replace({before, pair_of(before, left), pair_of(before, merge.result)});
            }
            if (at + 2 < tokens.size()) {
                const uint16_t after = tokens[at + 2];
                replace({after, pair_of(right, after), pair_of(merge.result, after)});
            }
            tokens[size++] = merge.result;
            ++at;
        }
        word.size = static_cast<uint32_t>(size);
    }

    const size_t vocab_size_;
    BpeVocabulary result_;
    std::vector<uint16_t> tokens_;  // tokens of all words
    std::vector<Word> words_;
    std::unordered_map<uint32_t, int64_t> counts_;  // counts of pairs
    std::unordered_map<uint32_t, Words> found_;     // pairs since the last merge, with their words
    std::vector<Words> word_lists_;
    std::priority_queue<Candidate> queue_;
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
