// Writes a checkpoint in two phases. Every rank writes its own file; then rank 0 writes the rest and renames the
// folder. An unfinished folder is never read as a checkpoint and does not change existing ones.
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
    int64_t most_fetched = kMostNumbersFetched;  // elements per chunk
};

// Writes this rank's file in chunks into the unfinished folder, which it creates. File system errors are Error(failure)
// with the system's reason.
class RankFileWriter {
  public:
    // `system` and `pieces` must outlive the writer.
    RankFileWriter(FileSystem& system, const std::string& run, RankFile which,
                   const std::vector<StatePiece>& pieces);

    struct Chunk {
        size_t piece;
        Range elements;  // in the piece
    };
    // Returns the next chunk for write(); nullopt after the last.
    std::optional<Chunk> next() const;
    // Writes the elements of the next chunk. Throws Error(diverged) if they are masters and not all finite.
    void write(const void* numbers);
    // After the last chunk: syncs the file and returns its name, sizes and hashes.
    CheckpointFile finish();

  private:
    // One box of a piece.
    struct Part {
        size_t piece;
        Range elements;  // in the piece
        std::string name;
    };

    FileSystem& system_;
    const std::vector<StatePiece>& pieces_;
    const std::string folder_;
    const int64_t most_;  // elements per chunk
    CheckpointFile result_;
    std::vector<Part> parts_;  // in the file's order
    DurableFile file_;
    std::string sums_;
    size_t part_ = 0;  // index of the next chunk's part
    int64_t first_ = 0;
};

// After all files of `info` are written: writes the rest, renames the folder (replacing an existing one), then deletes
// the oldest checkpoints until `keep` are left. Errors as above.
void commit_checkpoint(FileSystem& system, const std::string& run, const CheckpointInfo& info, int64_t keep);

// Deletes the folders of interrupted writes. Call before any rank writes.
void remove_unfinished(FileSystem& system, const std::string& run);

}  // namespace speedrun
