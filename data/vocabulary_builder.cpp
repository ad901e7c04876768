#include "data/vocabulary_builder.h"

#include <utility>

#include "data/gpt2_alphabet.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int64_t kMaxId = UINT16_MAX;

}  // namespace

void VocabularyBuilder::add(const std::string& where, std::string bytes, int64_t id) {
    if (bytes.empty() || bytes.size() > kMaxTokenBytes) {
        throw_data("{}: {}: a token of {} bytes, expected 1 to {}", path_, where, bytes.size(),
                   kMaxTokenBytes);
    }
    check_free(where, id);
    result_.tokens[static_cast<size_t>(id)] = std::move(bytes);
    const std::string& stored = result_.tokens[static_cast<size_t>(id)];
    if (!ids_.emplace(stored, static_cast<uint16_t>(id)).second) {
        throw_data("{}: {}: has the same bytes as token {}", path_, where, ids_.at(stored));
    }
}

void VocabularyBuilder::reserve(const std::string& where, int64_t id) {
    check_free(where, id);
}

std::optional<uint16_t> VocabularyBuilder::id_of(const std::string& bytes) const {
    const auto found = ids_.find(bytes);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
}

void VocabularyBuilder::merge_texts(const std::string& where, const std::string& left,
                                    const std::string& right) {
    const std::string left_bytes = gpt2_bytes(path_, where, left),
                      right_bytes = gpt2_bytes(path_, where, right);
    const auto a = id_of(left_bytes), b = id_of(right_bytes), result = id_of(left_bytes + right_bytes);
    if (!a || !b || !result) {
        throw_data("{}: {}: '{}' is not in the vocabulary", path_, where,
                   !a   ? left
                   : !b ? right
                        : left + right);
    }
    const auto [first, is_new] = merged_.emplace(uint32_t{*a} << 16 | *b, where);
    if (!is_new) throw_data("{}: {}: has the same pair as {}", path_, where, first->second);
    merge(*a, *b, *result, static_cast<uint32_t>(result_.merges.size()));
}

bool VocabularyBuilder::merge_line(const std::string& where, const std::string& line) {
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) return false;
    merge_texts(where, line.substr(0, space), line.substr(space + 1));
    return true;
}

BpeVocabulary VocabularyBuilder::finish(int32_t separator, bool whole_pieces) {
    for (int byte = 0; byte < 256; ++byte) {
        const auto id = id_of(std::string(1, static_cast<char>(byte)));
        if (!id) throw_data("{}: no token for the single byte 0x{:02x}, expected all 256", path_, byte);
        result_.of_byte[static_cast<size_t>(byte)] = *id;
    }
    result_.separator = separator;
    result_.whole_pieces = whole_pieces;
    return std::move(result_);
}

void VocabularyBuilder::check_free(const std::string& where, int64_t id) {
    if (id < 0 || id > kMaxId) {
        throw_data("{}: {}: token id {} is outside 0 to {} (shards hold 16 bits)", path_, where, id, kMaxId);
    }
    const auto index = static_cast<size_t>(id);
    if (!is_free(index)) throw_data("{}: {}: token id {} is taken already", path_, where, id);
    if (index >= used_.size()) {
        used_.resize(index + 1);
        result_.tokens.resize(index + 1);
    }
    used_[index] = true;
}

}  // namespace speedrun
