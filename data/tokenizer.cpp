#include "data/tokenizer.h"

#include "data/bpe_vocabulary.h"
#include "data/gpt2_tokenizer.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

class ByteTokenizer final : public Tokenizer {
  public:
    std::string_view name() const override { return "bytes"; }
    int32_t vocab_size() const override { return kByteValues + 1; }
    int32_t separator() const override { return kByteValues; }

    std::vector<uint16_t> encode(std::string_view text) const override {
        std::vector<uint16_t> tokens;
        tokens.reserve(text.size());
        // Converts through unsigned char: a plain char above 127 is negative on x86.
        for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
        return tokens;
    }

    std::string decode(std::span<const int32_t> tokens) const override {
        std::string text;
        text.reserve(tokens.size());
        for (const int32_t token : tokens) {
            if (token >= 0 && token < kByteValues) text.push_back(static_cast<char>(token));
        }
        return text;
    }

  private:
    static constexpr int32_t kByteValues = 256;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name, const std::string& vocabulary) {
    if (name == "bytes") {
        if (!vocabulary.empty())
            throw_usage("tokenizer 'bytes' takes no vocabulary, but {} is given", vocabulary);
        return std::make_unique<ByteTokenizer>();
    }
    if (name == "gpt2") {
        if (vocabulary.empty()) {
            throw_usage(
                "tokenizer 'gpt2' needs --vocab FILE: a tiktoken file (r50k_base.tiktoken) or GPT-2's "
                "tokenizer.json");
        }
        return make_gpt2_tokenizer(read_bpe_vocabulary(vocabulary));
    }
    throw_usage("unknown tokenizer '{}', known: bytes, gpt2", name);
}

}  // namespace speedrun
