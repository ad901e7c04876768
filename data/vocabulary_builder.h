// Collects the tokens and merges of a vocabulary file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/bpe_vocabulary.h"

namespace speedrun {

// Each error is a data error with the path and `where`, the location in the file.
class VocabularyBuilder {
  public:
    explicit VocabularyBuilder(std::string path) : path_(std::move(path)) {}

    const std::string& path() const { return path_; }
    // Stores a token.
    void add(const std::string& where, std::string bytes, int64_t id);
    // Marks an id that has no text.
    void reserve(const std::string& where, int64_t id);

    std::optional<uint16_t> id_of(const std::string& bytes) const;
    bool is_free(size_t id) const { return id >= used_.size() || !used_[id]; }
    const std::vector<std::string>& tokens() const { return result_.tokens; }

    void merge(uint16_t left, uint16_t right, uint16_t result, uint32_t rank) {
        result_.merges.push_back({left, right, result, rank});
    }
    // Stores the next merge of two tokens in GPT-2's alphabet of bytes. Throws for unknown tokens and for a pair that has
    // a merge.
    void merge_texts(const std::string& where, const std::string& left, const std::string& right);
    // Stores the next merge of a line "left right". Returns false for other text.
    bool merge_line(const std::string& where, const std::string& line);

    // Throws if a single byte has no token.
    BpeVocabulary finish(int32_t separator, bool whole_pieces);

  private:
    void check_free(const std::string& where, int64_t id);

    const std::string path_;
    BpeVocabulary result_;
    std::vector<bool> used_;
    std::unordered_map<std::string, uint16_t> ids_;
    std::unordered_map<uint32_t, std::string> merged_;  // location of each pair
};

}  // namespace speedrun
