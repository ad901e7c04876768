// A checkpoint's folder, RUN/checkpoints/step-00000123/, and what is in it besides tensors:
//   rank-00000.safetensors …   pieces of tensors, f32 or bf16, as many files as ranks wrote it. A tensor is
//   "master/PARAMETER"
//                              or "KIND/PARAMETER" of an optimizer (StateKind), in the parameter's shape
//                              where it is one number per element; a piece has "[BEGIN:END]" behind its name,
//                              in elements of the flattened tensor, or "[ROW:END,COLUMN:END]" where it is a
//                              box of a matrix, unless it is all of it (tensor_box.h).
//   rank-00000.sums …          a line for that file's header and for each of its tensors: XXH128 of the file from its
//                              first byte to the last one of this
//   checkpoint.json            CheckpointInfo
//   XXH128SUMS                 of all others, as `xxhsum -c` reads it
// Each byte is hashed once. The first tensor whose sum is wrong is the first that is damaged, and the first rank needs two sums
// of every other one, whatever that has written.
// The tensors know nothing of the mesh that wrote them. The folder is written as ".step-00000123.part" and
// gets its name when all of it is on the disk, so one with the right name is complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/durable_file.h"
#include "kernels/device/dtype.h"

namespace speedrun {

struct CheckpointTensor {
    std::string name;
    std::vector<int64_t> shape;
    DType dtype = DType::f32;  // f32 or bf16
    int64_t numel() const;
    bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointFile {
    std::string name;
    int64_t bytes = 0;
    std::string xxh128, sums_xxh128;  // of it and of its .sums; in XXH128SUMS
};

// Times depend on the machine; everything else in a checkpoint depends on config, data and mesh alone.
struct MeasuredTimes {
    double train_ms = 0, data_ms = 0, optimizer_ms = 0, comm_exposed_ms = 0, comm_ms = 0;
    std::optional<double> time_to_target_ms;
    int64_t validations_from =
        0;  // step from which on validations count for that: earlier ones were of other data
};

struct CheckpointInfo {
    int64_t step = 0;            // optimizer steps done, so the index of the next one
    int64_t tokens = 0;          // trained on
    int64_t next_row = 0;        // of the stage, over all ranks: where the loader continues
    int64_t seed = 0;            // of the order of rows and of what else is drawn, as (seed, step)
    double next_lr_factor = 0;   // of the schedule, at the next step
    double train_loss = 0;       // of the last step
    std::string precision;       // compute type: "f32", "bf16"
    int64_t ranks = 1;           // that wrote it
    std::string mesh, strategy;  // likewise
    std::string written_by;      // the program's commit
    std::string config;          // resolved, JSON
    std::string
        data;  // identity of the shards, JSON (data_identity.h); empty: an older checkpoint, without it
    std::vector<CheckpointTensor> tensors;
    std::vector<CheckpointFile> files;
    MeasuredTimes measured;
};

// "step-00000123", and back; -1: not the name of a checkpoint.
std::string checkpoint_name(int64_t step);
int64_t step_of_checkpoint(const std::string& name);
std::string rank_file_name(int64_t rank);
std::string sums_file_name(const std::string& rank_file);
inline constexpr const char* kHeaderSum = "header";  // its name there; no tensor's, which have a "/"
// The folders of complete checkpoints in RUN/checkpoints, newest first; none if there is no such folder.
std::vector<std::string> list_checkpoints(const std::string& run);
// Is this the folder of one checkpoint?
bool is_checkpoint(const std::string& folder);

// Writes checkpoint.json and XXH128SUMS.
void write_checkpoint_info(FileSystem& system, const std::string& folder, const CheckpointInfo& info);
// Throws a data error, with what was expected and found, if one of them is missing or damaged.
CheckpointInfo read_checkpoint_info(const std::string& folder);
// What the text of a checkpoint.json says; its files have no sums yet. Throws a data error that names `path`.
CheckpointInfo parse_checkpoint_info(std::string_view text, const std::string& path);

// XXH128 by name, of lines as `xxhsum -H2` writes them: 32 digits, two blanks, the name. A data error names file and line.
std::map<std::string, std::string> read_sums(const std::string& path);
void add_sum(std::string& lines, const std::string& xxh128, const std::string& name);

// What a rank says of its file to the first one, as text.
std::string to_text(const CheckpointFile& file);
CheckpointFile checkpoint_file_from_text(const std::string& text);

}  // namespace speedrun
