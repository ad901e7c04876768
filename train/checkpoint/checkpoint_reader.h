// Reads a checkpoint, whatever mesh wrote it: any box of any tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_info.h"
#include "train/checkpoint/tensor_box.h"

namespace speedrun {

class CheckpointReader {
  public:
    // Reads checkpoint.json alone. Throws a data error if that is missing or damaged; so do the others, each
    // naming file, tensor or offset, what was expected and what was found.
    explicit CheckpointReader(std::string folder);

    const std::string& folder() const { return folder_; }
    const CheckpointInfo& info() const { return info_; }

    // Checks size and XXH128 of one of info().files, and of the sums of its tensors.
    void verify_file(const CheckpointFile& file) const;
    // What tensors the file at this index of info().files holds, as its header says, for index().
    std::string header(size_t file) const;
    // Takes the headers of all files, each once, and checks that they hold every number of every tensor, once. So ranks can read
    // some each, and then open those files alone that they need numbers of.
    void index(const std::vector<std::string>& headers);
    void index();  // reads them all by itself
    // After index(): are these its tensors, no more and no fewer, of these shapes and types?
    void expect_tensors(const std::vector<CheckpointTensor>& expected) const;
    // After index(): the numbers of a box of a tensor, row by row, in the tensor's type.
    void read(const std::string& tensor, const TensorBox& box, void* values) const;

  private:
    struct Stored {  // a piece in a file
        TensorBox box;
        size_t file;
        int64_t offset;  // bytes
        DType dtype;
    };

    std::string path_of(const CheckpointFile& file) const { return folder_ + "/" + file.name; }
    std::string damaged_tensor(const CheckpointFile& file) const;
    void check_covered(const CheckpointTensor& tensor) const;

    std::string folder_;
    CheckpointInfo info_;
    std::map<std::string, std::vector<Stored>> stored_;  // by tensor
};

}  // namespace speedrun
