// Which rows of keys and values travel between ranks that share rows of tokens (context parallel): to whoever sees them, and
// their gradients home.
#pragma once

#include <memory>
#include <vector>

#include "data/kept_keys.h"
#include "train/comm/communicator.h"

namespace speedrun {

struct SharedKeys {
    ContextPart part;
    int64_t rows;  // of the microbatch
    AttendedRow row;
    int64_t columns;  // of a key and its value together
};

// A rank's part of one exchange, of what documents let it see, in elements of buffers of `columns` columns: its own tokens, padding included; the keys that
// it fetches; and the gradients of its tokens as they come home, one piece behind the other.
class KeyTravel {
  public:
    // documents: Batch::chunk_first_keys; empty: each row is one.
    explicit KeyTravel(const SharedKeys& keys, const std::vector<int32_t>& documents = {});

    // This rank's tokens go to those who see them.
    void send_to(int member);
    // The member's tokens come, each to its place among `kept` of its row.
    void receive_from(int member, const KeptKeys& kept);

    const Exchange& fetch() const { return fetch_; }
    const Exchange& bring() const { return bring_; }
    // The gradients of these tokens of the part, at `from` in what came home.
    struct Home {
        int64_t token, from, count;
    };
    // By rank that they come from, in the order of send_to.
    const std::vector<std::vector<Home>>& homes() const { return homes_; }
    int64_t came_rows() const { return came_rows_; }
    // Rows of the keys that no query sees, and that do not come.
    struct Absent {
        int64_t key, count;
    };
    const std::vector<Absent>& absent() const { return absent_; }

  private:
    int64_t token_of(int64_t row, int64_t place) const;
    std::vector<PlaceRange> needed_by(const ContextPart& part, int64_t row) const;

    const SharedKeys keys_;
    const std::vector<int32_t> documents_;
    const std::vector<PlaceRange> own_;
    Exchange fetch_, bring_;
    std::vector<std::vector<Home>> homes_;
    int64_t came_rows_ = 0;
    std::vector<Absent> absent_;
};

}  // namespace speedrun
