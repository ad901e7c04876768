#include "data/tokenizer.h"

#include "data/bpe_vocabulary.h"
#include "data/gpt2_tokenizer.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

void append_bytes(std::string_view text, std::vector<uint16_t>& tokens) {
    // Converts through unsigned char: a plain char above 127 is negative on x86.
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    tokens.insert(tokens.end(), bytes, bytes + text.size());
}

class ByteEncoder final : public TextEncoder {
  public:
    void add(std::string_view part, std::vector<uint16_t>& tokens) override { append_bytes(part, tokens); }
    void finish(std::vector<uint16_t>&) override {}
};

class ByteTokenizer final : public Tokenizer {
  public:
    std::string_view name() const override { return "bytes"; }
    int32_t vocab_size() const override { return kByteValues + 1; }
    int32_t separator() const override { return kByteValues; }

    std::vector<uint16_t> encode(std::string_view text) const override {
        std::vector<uint16_t> tokens;
        append_bytes(text, tokens);
        return tokens;
    }

    std::unique_ptr<TextEncoder> encoder() const override { return std::make_unique<ByteEncoder>(); }

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
                "tokenizer 'gpt2' needs --vocab PATH: a tiktoken file (r50k_base.tiktoken), a tokenizer.json, or a folder "
                "with vocab.json and merges.txt, or with encoder.json and vocab.bpe");
        }
        return make_gpt2_tokenizer(read_bpe_vocabulary(vocabulary));
    }
    throw_usage("unknown tokenizer '{}', known: bytes, gpt2", name);
}

}  // namespace speedrun
