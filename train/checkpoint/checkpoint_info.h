// Layout of a checkpoint folder, RUN/checkpoints/step-00000123/, and its files other than tensors:
//   rank-00000.safetensors …   pieces of tensors, f32 or bf16; one file per rank that writes. A tensor is named
//                              "master/PARAMETER" or "KIND/PARAMETER" for optimizer state (StateKind). State with one
//                              value per element has the parameter's shape. A piece that is not the whole tensor has
//                              a suffix: "[BEGIN:END]" in elements of the flattened tensor, or
//                              "[ROW:END,COLUMN:END]" for a box of a matrix (tensor_box.h).
//   rank-00000.sums …          one line for that file's header and one for each of its tensors: XXH128 of the file
//                              from its first byte to the last byte of the header or tensor.
//   checkpoint.json            CheckpointInfo.
//   XXH128SUMS                 sums of all other files, in the format of `xxhsum -c`.
// Sums are prefix sums, so that each byte is hashed once: the first wrong sum names the damaged tensor. Rank 0
// receives two sums per rank: that of the data file and that of its .sums file.
// Tensors do not depend on the mesh that wrote them. The folder is written as ".step-00000123.part" and renamed
// when all files are synced, so a folder with the final name is complete.
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
    std::string xxh128, sums_xxh128;  // sums of the file and of its .sums file, from XXH128SUMS
};

// Times depend on the machine. All other content depends only on config, data and mesh.
struct MeasuredTimes {
    double train_ms = 0, data_ms = 0, optimizer_ms = 0, comm_exposed_ms = 0, comm_ms = 0;
    std::optional<double> time_to_target_ms;
    int64_t validations_from =
        0;  // first step with validations that count for time_to_target_ms: earlier ones used other data
};

struct CheckpointInfo {
    int64_t step = 0;  // optimizer steps done: index of the next step
    int64_t tokens = 0;
    int64_t next_row = 0;        // next row of the stage, over all ranks
    int64_t seed = 0;            // seed of the row order and of all other draws, with the step
    double next_lr_factor = 0;   // learning-rate factor of the next step
    double train_loss = 0;       // last step's
    std::string precision;       // compute dtype: "f32", "bf16"
    int64_t ranks = 1;           // ranks that wrote the checkpoint
    std::string mesh, strategy;  // mesh and strategy of the ranks that wrote the checkpoint
    std::string written_by;      // commit of the program
    std::string config;          // resolved, JSON
    std::string data;            // identity of the shards, JSON (data_identity.h); empty in older checkpoints
    std::string origin;          // RunOrigin of the run, JSON; empty: random weights
    std::vector<CheckpointTensor> tensors;
    std::vector<CheckpointFile> files;
    MeasuredTimes measured;
};

// Folder name of a step, "step-00000123", and its inverse. Returns -1 if the name is no checkpoint's.
std::string checkpoint_name(int64_t step);
int64_t step_of_checkpoint(const std::string& name);
std::string rank_file_name(int64_t rank);
std::string sums_file_name(const std::string& rank_file);
// name of the header's sum in .sums; tensor names contain a "/"
inline constexpr const char* kHeaderSum = "header";
// Returns the folders of complete checkpoints in RUN/checkpoints, newest first; empty without that folder.
std::vector<std::string> list_checkpoints(const std::string& run);
// True if the folder contains checkpoint.json or a file of sums.
bool is_checkpoint(const std::string& folder);

// Writes checkpoint.json and XXH128SUMS.
void write_checkpoint_info(FileSystem& system, const std::string& folder, const CheckpointInfo& info);
// Throws a data error with expected and actual content if one of the two files is missing or damaged.
CheckpointInfo read_checkpoint_info(const std::string& folder);
// Parses the text of a checkpoint.json; the files have no sums yet. Throws a data error that names `path`.
CheckpointInfo parse_checkpoint_info(std::string_view text, const std::string& path);

// Returns XXH128 by name from lines in the format of `xxhsum -H2`: 32 digits, two blanks, the name. Throws a data error
// that names file and line.
std::map<std::string, std::string> read_sums(const std::string& path);
void add_sum(std::string& lines, const std::string& xxh128, const std::string& name);

// Serialises a rank's entry for rank 0.
std::string to_text(const CheckpointFile& file);
CheckpointFile checkpoint_file_from_text(const std::string& text);

}  // namespace speedrun
