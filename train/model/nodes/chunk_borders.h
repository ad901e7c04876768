// The borders of the chunks that ranks have of rows which they share, and how a row travels over them: from the rank with the
// end of one chunk to the rank with the start of the next.
#pragma once

#include "data/kept_keys.h"
#include "train/comm/communicator.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

class ChunkBorders {
  public:
    struct Options {
        ContextPart part;               // of more than one rank
        int64_t rows, sequence_length;  // of the microbatch
        int64_t columns;
    };
    explicit ChunkBorders(const Options& options);

    int64_t chunk_length() const { return options_.part.chunk_length(options_.sequence_length); }
    int64_t columns() const { return options_.columns; }
    int64_t chunks() const { return 2 * options_.rows; }  // of the part, two in each row, padding among them
    bool has_row_starts() const {
        return options_.part.index == 0;
    }  // in every other chunk, from the first on

    // The first row of each chunk, and the last, of rows of all tokens.
    Tensor starts(const Tensor& tokens) const { return rows_apart(tokens, 0, chunk_length()); }
    Tensor ends(const Tensor& tokens) const { return rows_apart(tokens, chunk_length() - 1, chunk_length()); }

    // before [chunks,columns], contiguous as `ends`, receives the end of the chunk before each one; of a chunk that begins a
    // row, or is padding alone, it stays what it is. Enqueues on the stream.
    void fetch(const Call& call, const Tensor& before, const Tensor& ends, Stream& stream) const;
    // The way back: what belongs to ends; of one behind which no chunk comes it stays what it is.
    void bring(const Call& call, const Tensor& ends, const Tensor& before, Stream& stream) const;
    std::vector<Node::Sent> sent() const;

  private:
    const Options options_;
    Exchange fetch_, bring_;
};

}  // namespace speedrun
