#include "data/shard_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/durable_file.h"
#include "data/shard.h"
#include "kernels/device/error.h"

namespace speedrun {

ShardWriter::ShardWriter(Place place, int64_t shard_tokens)
    : place_(std::move(place)), limit_(shard_tokens), file_(nullptr, std::fclose) {}

std::string ShardWriter::path() const {
    return place_.folder + "/" + file_name_;
}

void ShardWriter::append(std::span<const uint16_t> tokens) {
    while (!tokens.empty()) {
        if (!file_) begin();
        const auto count = std::min(tokens.size(), static_cast<size_t>(limit_ - written_));
        write(tokens.first(count));
        tokens = tokens.subspan(count);
        if (written_ == limit_) complete();
    }
}

std::vector<ShardInfo> ShardWriter::finish() {
    if (file_) complete();
    return std::move(shards_);
}

void ShardWriter::begin() {
    file_name_ = fmt::format("{}_{:06}.bin", place_.split, shards_.size());
    file_.reset(std::fopen(path().c_str(), "wbe"));
    check_file(file_ ? 0 : -1, path(), "creating");
    check_file(std::fseek(file_.get(), kShardHeaderBytes, SEEK_SET), path(), "writing");
    written_ = 0;
}

void ShardWriter::write(std::span<const uint16_t> tokens) {
    const size_t done = std::fwrite(tokens.data(), sizeof(uint16_t), tokens.size(), file_.get());
    check_file(done == tokens.size() ? 0 : -1, path(), "writing");
    written_ += static_cast<int64_t>(tokens.size());
}

// Writes the header, which has the number of tokens.
void ShardWriter::complete() {
    const std::array<int32_t, kShardHeaderBytes / 4> header = {kShardMagic, kShardVersion,
                                                               static_cast<int32_t>(written_)};
    check_file(std::fseek(file_.get(), 0, SEEK_SET), path(), "writing");
    check_file(std::fwrite(header.data(), sizeof(header), 1, file_.get()) == 1 ? 0 : -1, path(), "writing");
    check_file(std::fflush(file_.get()), path(), "writing");
    check_file(::fsync(::fileno(file_.get())), path(), "syncing");
    check_file(std::fclose(file_.release()), path(), "closing");
    shards_.push_back({file_name_, place_.split, written_, sha256_file(path())});
}

}  // namespace speedrun
