#include "data/text/byte_source.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "data/open_file.h"
#include "data/text/first_bytes.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

// A file with a buffer in front. The buffer has the file's first bytes after construction.
class CompressedFile {
  public:
    explicit CompressedFile(const std::string& path) : file_(path), buffer_(kBytes) {
        while (end_ < kSignatureBytes && refill()) {
        }
    }
    const std::string& path() const { return file_.path(); }
    std::string_view pending() const { return {buffer_.data() + begin_, end_ - begin_}; }
    void drop(size_t bytes) { begin_ += bytes; }
    int64_t offset() const { return offset_ - static_cast<int64_t>(end_ - begin_); }  // offset of pending()

    // Appends bytes to pending(). Returns false at the end of the file.
    bool refill() {
        if (begin_ == end_) begin_ = end_ = 0;
        const size_t got = file_.read(std::span(buffer_).subspan(end_));
        end_ += got;
        offset_ += static_cast<int64_t>(got);
        return got > 0;
    }
    // Copies pending bytes, or reads directly.
    size_t read_plain(std::span<char> out) {
        if (pending().empty()) return file_.read(out);
        const size_t bytes = std::min(out.size(), pending().size());
        std::memcpy(out.data(), pending().data(), bytes);
        drop(bytes);
        return bytes;
    }

  private:
    static constexpr size_t kBytes = size_t{1} << 17, kSignatureBytes = 4;

    const OpenFile file_;
    std::vector<char> buffer_;
    size_t begin_ = 0, end_ = 0;
    int64_t offset_ = 0;  // bytes read from the file
};

class PlainSource final : public ByteSource {
  public:
    explicit PlainSource(std::unique_ptr<CompressedFile> file) : file_(std::move(file)) {}
    size_t read(std::span<char> out) override { return file_->read_plain(out); }

  private:
    std::unique_ptr<CompressedFile> file_;
};

// Reads blocks by a decoder that consumes the file's bytes, until `out` has some or the file ends.
class DecodedSource : public ByteSource {
  public:
    explicit DecodedSource(std::unique_ptr<CompressedFile> file) : file_(std::move(file)) {}

    size_t read(std::span<char> out) override {
        size_t made = 0;
        while (made == 0) {
            if (file_->pending().empty() && !file_->refill()) {
                if (made = flush(out); made > 0) return made;
                if (!is_between_blocks())
                    throw_data(
                        "{}: ends within its compressed data, after {} bytes: truncated? Copy it again",
                        file_->path(), file_->offset());
                return 0;
            }
            made = decode(out);
        }
        return made;
    }

  protected:
    // Decodes pending bytes of the file into `out`. Returns the number of bytes written.
    virtual size_t decode(std::span<char> out) = 0;
    // Writes decoded bytes that the decoder still holds.
    virtual size_t flush(std::span<char> out) = 0;
    // True before the first byte of a member or frame: the file may end here.
    virtual bool is_between_blocks() const = 0;

    [[noreturn]] void damaged(const char* format, const char* reason) const {
        throw_data("{}: damaged {} data at byte {}: {}", file_->path(), format, file_->offset(), reason);
    }
    CompressedFile& file() { return *file_; }

  private:
    std::unique_ptr<CompressedFile> file_;
};

class GzipSource final : public DecodedSource {
  public:
    explicit GzipSource(std::unique_ptr<CompressedFile> file) : DecodedSource(std::move(file)) {
        constexpr int kGzip = 16 + MAX_WBITS;  // zlib: expect a gzip header
        if (inflateInit2(&stream_, kGzip) != Z_OK) throw_internal("zlib: inflateInit2 failed");
    }
    ~GzipSource() override { inflateEnd(&stream_); }
    GzipSource(const GzipSource&) = delete;
    GzipSource& operator=(const GzipSource&) = delete;

  protected:
    size_t decode(std::span<char> out) override {
        const std::string_view in = file().pending();
        stream_.next_in =
            reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));  // zlib's input is not const
        stream_.avail_in = static_cast<uInt>(in.size());
        between_ = false;
        const size_t made = inflate_into(out);
        file().drop(in.size() - stream_.avail_in);
        return made;
    }
    size_t flush(std::span<char> out) override {
        if (between_) return 0;
        stream_.avail_in = 0;
        return inflate_into(out);
    }
    bool is_between_blocks() const override { return between_; }

  private:
    size_t inflate_into(std::span<char> out) {
        stream_.next_out = reinterpret_cast<Bytef*>(out.data());
        stream_.avail_out = static_cast<uInt>(out.size());
        const int result = inflate(&stream_, Z_NO_FLUSH);
        if (result == Z_STREAM_END) {
            inflateReset(&stream_);
            between_ = true;
        } else if (result != Z_OK && result != Z_BUF_ERROR) {
            damaged("gzip", stream_.msg ? stream_.msg : "unknown method");
        }
        return out.size() - stream_.avail_out;
    }

    z_stream stream_{};
    bool between_ = true;
};

class ZstdSource final : public DecodedSource {
  public:
    explicit ZstdSource(std::unique_ptr<CompressedFile> file)
        : DecodedSource(std::move(file)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
        if (!stream_) throw_internal("zstd: no memory for a stream");
    }

  protected:
    size_t decode(std::span<char> out) override {
        const std::string_view in = file().pending();
        ZSTD_inBuffer from{in.data(), in.size(), 0};
        const size_t made = decode_into(out, from);
        file().drop(from.pos);
        return made;
    }
    size_t flush(std::span<char> out) override {
        ZSTD_inBuffer nothing{nullptr, 0, 0};
        return between_ ? 0 : decode_into(out, nothing);
    }
    bool is_between_blocks() const override { return between_; }

  private:
    size_t decode_into(std::span<char> out, ZSTD_inBuffer& from) {
        ZSTD_outBuffer to{out.data(), out.size(), 0};
        const size_t result = ZSTD_decompressStream(stream_.get(), &to, &from);
        if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
            throw_data("{}: its window is above 128 MiB; compress it without --long", file().path());
        if (ZSTD_isError(result)) damaged("Zstandard", ZSTD_getErrorName(result));
        between_ = result == 0;
        return to.pos;
    }

    std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
    bool between_ = true;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
    auto file = std::make_unique<CompressedFile>(path);
    const std::string_view first = file->pending();
    if (first.starts_with("\x1f\x8b")) return std::make_unique<GzipSource>(std::move(file));
    if (first.starts_with("\x28\xb5\x2f\xfd")) return std::make_unique<ZstdSource>(std::move(file));
    for (const std::string_view suffix : {".gz", ".zst"}) {
        if (path.ends_with(suffix))
            throw_data("{}: not compressed as its name says: {}; download it again, or rename it", path,
                       shown_bytes(first));
    }
    return std::make_unique<PlainSource>(std::move(file));
}

}  // namespace speedrun
