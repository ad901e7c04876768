#include "train/records/gzip.h"

#include <zlib.h>

#include <array>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int kGzip = 16 + MAX_WBITS;  // zlib: add a gzip header
constexpr size_t kMaxText = size_t{256} << 20;

Bytef* bytes_of(const std::string& text) {  // zlib's input is not const
    return reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
}

}  // namespace

std::string gzip(const std::string& text) {
    if (text.size() > kMaxText) throw_internal("gzip of {} bytes, at most {}", text.size(), kMaxText);
    z_stream stream{};
    if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, MAX_MEM_LEVEL, Z_DEFAULT_STRATEGY) !=
        Z_OK)
        throw_internal("zlib: deflateInit2 failed");
    std::string out(deflateBound(&stream, text.size()), '\0');
    stream.next_in = bytes_of(text);
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = bytes_of(out);
    stream.avail_out = static_cast<uInt>(out.size());
    const int result = deflate(&stream, Z_FINISH);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    if (result != Z_STREAM_END) throw_internal("zlib: deflate gave {}", result);
    return out;
}

std::string gunzip(const std::string& bytes, const std::string& origin) {
    z_stream stream{};
    if (inflateInit2(&stream, kGzip) != Z_OK) throw_internal("zlib: inflateInit2 failed");
    stream.next_in = bytes_of(bytes);
    stream.avail_in = static_cast<uInt>(bytes.size());
    std::string text;
    std::array<char, 1 << 16> piece;
    int result = Z_OK;
    while (result == Z_OK && text.size() <= kMaxText) {
        stream.next_out = reinterpret_cast<Bytef*>(piece.data());
        stream.avail_out = static_cast<uInt>(piece.size());
        result = inflate(&stream, Z_NO_FLUSH);
        text.append(piece.data(), piece.size() - stream.avail_out);
    }
    const bool whole = result == Z_STREAM_END && stream.avail_in == 0;
    inflateEnd(&stream);
    if (!whole) throw_data("{}: damaged: not one whole gzip stream", origin);
    return text;
}

}  // namespace speedrun
