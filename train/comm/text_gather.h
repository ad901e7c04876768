// The texts of all ranks on all ranks, or on the first, in few messages. On all: J. Bruck et al., "Efficient algorithms for all-to-all communications in
// multiport message-passing systems" (1997), the concatenation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/comm/message_channel.h"

namespace speedrun {

// In a round a rank passes on the texts of `count` ranks, its own and those behind it, to the rank that many before, and gets as
// many from the rank that many behind, of which it held none yet.
struct GatherRound {
    int send_to, receive_from, count;
};
// Rounds of one rank: ceil(log2 size), and with them every rank has held every text once.
std::vector<GatherRound> gather_rounds(int rank, int size);

// By rank. Collective over all ranks of the channel. wait: returns when all of a round's messages are complete.
// A rank sends 2 ceil(log2 size) messages, of 8 bytes for each text but one that it passes on, and the texts.
std::vector<std::string> gather_texts(MessageChannel& channel, int rank, int size, const std::string& text,
                                      int tag, const std::function<void(PendingMessages&)>& wait);

// The texts of all ranks on the first rank alone, along a tree: every other one sends two messages, one of 8 bytes for each text and one of the
// texts, once it has those of the ranks that have told it; a text passes as many ranks as its rank's number has binary digits 1.
std::vector<std::string> gather_texts_to_first(MessageChannel& channel, int rank, int size,
                                               const std::string& text, int tag,
                                               const std::function<void(PendingMessages&)>& wait);

}  // namespace speedrun
