// The two halves of writing a checkpoint: every rank writes its own file, then the first rank writes the rest and renames the folder.
// An unfinished folder is never read as a checkpoint, and changes none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/durable_file.h"
#include "train/checkpoint/state_pieces.h"

namespace speedrun {

inline constexpr int64_t kMostNumbersFetched = 1 << 20;

// RUN/checkpoints/.step-00000123.part
std::string unfinished_folder(const std::string& run, int64_t step);

struct RankFile {
    int64_t step = 0, rank = 0;
    int64_t most_fetched = kMostNumbersFetched;  // numbers of one chunk
};

// Writes this rank's file, chunk by chunk, into the unfinished folder, which it makes in the run's folder. Errors of the file system
// are Error(failure) with its reason.
class RankFileWriter {
  public:
    // `system` and `pieces` must outlive it.
    RankFileWriter(FileSystem& system, const std::string& run, RankFile which,
                   const std::vector<StatePiece>& pieces);

    // Numbers of a piece, in its type.
    struct Chunk {
        size_t piece;
        int64_t first, count;
    };
    // Returns the next chunk of the file, for write(); nullopt after the last.
    std::optional<Chunk> next() const;
    // Writes the numbers of the next chunk. Throws Error(diverged) if they are masters and not finite.
    void write(const void* numbers);
    // After the last chunk: syncs the file, and returns its name, sizes and hashes.
    CheckpointFile finish();

  private:
    // A box of a piece, with numbers begin … end of it.
    struct Part {
        size_t piece;
        int64_t begin, end;
        std::string name;
    };

    FileSystem& system_;
    const std::vector<StatePiece>& pieces_;
    const std::string folder_;
    const int64_t most_;  // numbers of a chunk
    CheckpointFile result_;
    std::vector<Part> parts_;  // the file's order
    DurableFile file_;
    std::string sums_;
    size_t part_ = 0;  // next chunk
    int64_t first_ = 0;
};

// When all files of `info` are there: writes the rest, gives the folder its name (one that had it is
// replaced), and then deletes older checkpoints until `keep` are left. Errors as above.
void commit_checkpoint(FileSystem& system, const std::string& run, const CheckpointInfo& info, int64_t keep);

// Deletes what unfinished writes left; before any rank writes.
void remove_unfinished(FileSystem& system, const std::string& run);

}  // namespace speedrun
