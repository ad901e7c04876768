// Tokenizer: text to tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace speedrun {

// Encodes documents that are read in parts. The tokens do not depend on where the parts are cut.
class TextEncoder {
  public:
    virtual ~TextEncoder() = default;
    // Appends tokens of the document so far.
    virtual void add(std::string_view part, std::vector<uint16_t>& tokens) = 0;
    // Appends the last tokens of the document. The next part begins another one.
    virtual void finish(std::vector<uint16_t>& tokens) = 0;
};

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;

    virtual std::string_view name() const = 0;
    virtual int32_t vocab_size() const = 0;  // tokens are 0 … vocab_size-1
    virtual int32_t separator() const = 0;   // token between documents; encode() never produces it

    // Returns the tokens of one document's text, without a separator.
    virtual std::vector<uint16_t> encode(std::string_view text) const = 0;

    // Creates an encoder, which refers to this tokenizer. It remembers frequent pieces of text, so large texts take less
    // time than by encode().
    virtual std::unique_ptr<TextEncoder> encoder() const = 0;

    // Returns the text of the tokens. Tokens without text (the separator, and ids added by a padded vocabulary) are
    // skipped, so that all sampled tokens can be printed.
    virtual std::string decode(std::span<const int32_t> tokens) const = 0;
};

// Creates the tokenizer of this name. "bytes": 256 byte values and the separator 256; "gpt2": byte-level BPE over a
// vocabulary, a file or folder (see bpe_vocabulary.h). Throws a usage error that lists the known names, or if a vocabulary is
// missing or not applicable; a data error for a bad vocabulary.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name, const std::string& vocabulary = "");

}  // namespace speedrun
