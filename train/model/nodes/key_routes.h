// Rows of keys and values that context-parallel ranks exchange: keys to the ranks that see them, and their gradients
// back.
#pragma once

#include <memory>
#include <vector>

#include "data/kept_keys.h"
#include "train/comm/communicator.h"

namespace speedrun {

struct SharedKeys {
    ContextSlice part;
    int64_t rows;  // rows of the microbatch
    AttendedRow row;
    int64_t columns;  // columns of a key and its value together
};

// One rank's part of an exchange, restricted to keys visible within documents. Offsets are in elements of three buffers
// with `columns` columns: own tokens with padding, fetched keys, and received gradients, stored consecutively.
class KeyRoutes {
  public:
    // documents: Batch::chunk_first_keys; empty: each row is one document.
    explicit KeyRoutes(const SharedKeys& keys, const std::vector<int32_t>& documents = {});

    // Adds the own tokens that `member` sees.
    void send_to(int member);
    // Adds the tokens of `member` that this rank sees, each at its index among `kept` of its row.
    void receive_from(int member, const KeptKeys& kept);

    const Exchange& fetch() const { return fetch_; }
    const Exchange& send_back() const { return send_back_; }
    // Gradients of `count` own tokens from `token`, at row `from` of the received gradients.
    struct GradientRange {
        int64_t token, from, count;
    };
    // Index: sender, in the order of send_to().
    const std::vector<std::vector<GradientRange>>& gradient_ranges() const { return gradient_ranges_; }
    int64_t received_rows() const { return received_rows_; }
    // Rows of kept keys that no query sees and that are not received.
    struct Absent {
        int64_t key, count;
    };
    const std::vector<Absent>& absent() const { return absent_; }

  private:
    int64_t token_of(int64_t row, int64_t place) const;
    std::vector<PositionRange> needed_by(const ContextSlice& part, int64_t row) const;

    const SharedKeys keys_;
    const std::vector<int32_t> documents_;
    const std::vector<PositionRange> own_;
    Exchange fetch_, send_back_;
    std::vector<std::vector<GradientRange>> gradient_ranges_;
    int64_t received_rows_ = 0;
    std::vector<Absent> absent_;
};

}  // namespace speedrun
