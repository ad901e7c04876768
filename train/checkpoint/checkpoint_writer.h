// The two halves of writing a checkpoint: every rank its own file, then the first rank the rest and the name.
// What is half done when the process dies is never taken for a checkpoint, and harms none that is there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/checkpoint/state_pieces.h"

namespace speedrun {

// Host memory with numbers first … first+count of piece `index`, in its type, good until the next call.
using FetchNumbers = std::function<const void*(size_t index, int64_t first, int64_t count)>;
inline constexpr int64_t kMostNumbersFetched = 1 << 20;

// RUN/checkpoints/.step-00000123.part
std::string unfinished_folder(const std::string& run, int64_t step);

struct RankFile {
    int64_t step = 0, rank = 0;
    int64_t most_fetched = kMostNumbersFetched;  // numbers of one call of FetchNumbers
};

// Writes this rank's file, synced, into the unfinished folder, which is made if need be; the run's folder is
// not. Throws Error(failure) that names what the file system refused.
CheckpointFile write_rank_file(FileSystem& system, const std::string& run, RankFile which,
                               const std::vector<StatePiece>& pieces, const FetchNumbers& fetch);

// When all files of `info` are there: writes the rest, gives the folder its name (one that had it is
// replaced), and then deletes older checkpoints until `keep` are left. Errors as above.
void commit_checkpoint(FileSystem& system, const std::string& run, const CheckpointInfo& info, int64_t keep);

// Deletes what unfinished writes left; before any rank writes.
void remove_unfinished(FileSystem& system, const std::string& run);

}  // namespace speedrun
