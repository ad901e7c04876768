// Gathers the texts of all ranks, on all ranks or on rank 0, in few messages. On all ranks: the concatenation algorithm of J.
// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/comm/message_channel.h"

namespace speedrun {

// Round of rank r, which holds the texts of ranks r, r + 1, …, r + h - 1 (mod size). It sends the first `count` of these to
// rank r - h, and receives the next `count` texts from rank r + h.
struct GatherRound {
    int send_to, receive_from, count;
};
// Returns the ceil(log2 size) rounds of one rank; afterwards every rank has received every text once.
std::vector<GatherRound> gather_rounds(int rank, int size);

// Returns the texts by rank. Collective over all ranks of the channel. wait: returns when all messages of a round are complete.
// A rank sends 2 ceil(log2 size) messages: the texts, and 8 bytes for each text except one.
std::vector<std::string> gather_texts(MessageChannel& channel, int rank, int size, const std::string& text,
                                      int tag, const std::function<void(PendingMessages&)>& wait);

// Returns the texts of all ranks on rank 0 only, along a tree. Every other rank sends two messages once it has its children's
// texts: 8 bytes for each text, and the texts. A text is forwarded once per binary digit 1 of its rank.
std::vector<std::string> gather_texts_to_first(MessageChannel& channel, int rank, int size,
                                               const std::string& text, int tag,
                                               const std::function<void(PendingMessages&)>& wait);

}  // namespace speedrun
