#include "data/gpt2_alphabet.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Characters of the bytes (encoder.py of GPT-2's release, bytes_to_unicode): printable Latin-1 as itself, other bytes
// in order from U+0100.
const std::array<int32_t, 256>& characters() {
    static const std::array<int32_t, 256> codes = [] {
        std::array<int32_t, 256> result{};
        int32_t next = 256;
        for (int32_t byte = 0; byte < 256; ++byte) {
            const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
            result[static_cast<size_t>(byte)] = printable ? byte : next++;
        }
        return result;
    }();
    return codes;
}

std::optional<char> byte_of(int32_t code) {
    static const std::unordered_map<int32_t, char> bytes = [] {
        std::unordered_map<int32_t, char> result;
        for (size_t byte = 0; byte < characters().size(); ++byte)
            result.emplace(characters()[byte], static_cast<char>(byte));
        return result;
    }();
    const auto found = bytes.find(code);
    if (found == bytes.end()) return std::nullopt;
    return found->second;
}

}  // namespace

std::string gpt2_bytes(const std::string& path, const std::string& where, const std::string& text) {
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t length =
            utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                             static_cast<utf8proc_ssize_t>(text.size() - at), &code);
        const auto byte = length > 0 ? byte_of(code) : std::nullopt;
        if (!byte) {
            throw_data(
                "{}: {}: '{}' is not written in GPT-2's alphabet of bytes (a byte-level BPE is expected)",
                path, where, text);
        }
        bytes += *byte;
        at += static_cast<size_t>(length);
    }
    return bytes;
}

std::string gpt2_text(std::string_view bytes) {
    std::string text;
    std::array<utf8proc_uint8_t, 4> character{};
    for (const char byte : bytes) {
        const auto length =
            utf8proc_encode_char(characters()[static_cast<unsigned char>(byte)], character.data());
        text.append(reinterpret_cast<const char*>(character.data()), static_cast<size_t>(length));
    }
    return text;
}

std::string gpt2_byte_order() {
    std::string bytes(characters().size(), '\0');
    for (size_t byte = 0; byte < bytes.size(); ++byte) bytes[byte] = static_cast<char>(byte);
    std::sort(bytes.begin(), bytes.end(), [](char a, char b) {
        return characters()[static_cast<unsigned char>(a)] < characters()[static_cast<unsigned char>(b)];
    });
    return bytes;
}

}  // namespace speedrun
