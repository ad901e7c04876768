// Exchange over chunk borders of rows shared by context ranks: the row at the end of each chunk is sent to the rank
// with the next chunk.
#pragma once

#include "data/kept_keys.h"
#include "train/comm/communicator.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

class ChunkBorders {
  public:
    struct Options {
        ContextSlice part;              // more than one rank
        int64_t rows, sequence_length;  // rows of the microbatch; tokens per row
        int64_t columns;
    };
    explicit ChunkBorders(const Options& options);

    int64_t chunk_length() const { return options_.part.chunk_length(options_.sequence_length); }
    int64_t columns() const { return options_.columns; }
    // chunks of this rank, two per row, including padding
    int64_t chunks() const { return 2 * options_.rows; }
    bool has_row_starts() const { return options_.part.index == 0; }  // first chunk of each row

    // First and last row of each chunk, from a tensor with all of this rank's tokens.
    Tensor starts(const Tensor& tokens) const { return strided_rows(tokens, 0, chunk_length()); }
    Tensor ends(const Tensor& tokens) const {
        return strided_rows(tokens, chunk_length() - 1, chunk_length());
    }

    // before [chunks,columns], contiguous like `ends`, receives the end of each chunk's predecessor. It is unchanged
    // for a chunk that starts a row or is only padding. Enqueues on the stream.
    void fetch(const Call& call, const Tensor& before, const Tensor& ends, Stream& stream) const;
    // Reverse of fetch(): returns gradients of `before` to `ends`. The last chunk's is unchanged.
    void send_back(const Call& call, const Tensor& ends, const Tensor& before, Stream& stream) const;
    std::vector<Node::Sent> sent() const;

  private:
    const Options options_;
    Exchange fetch_, send_back_;
};

}  // namespace speedrun
