// Reads a checkpoint written by any mesh: any box of any tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_info.h"
#include "train/checkpoint/tensor_box.h"

namespace speedrun {

class CheckpointReader {
  public:
    // Reads only checkpoint.json. All functions throw a data error for missing or damaged content. The error names
    // file, tensor or offset, the expected and the actual value.
    explicit CheckpointReader(std::string folder);

    const std::string& folder() const { return folder_; }
    const CheckpointInfo& info() const { return info_; }

    // Checks the size and XXH128 of one of info().files and of its .sums file.
    void verify_file(const CheckpointFile& file) const;
    // Returns the tensors in the header of info().files[file], as text for index().
    std::string header(size_t file) const;
    // Receives the headers of all files and checks that together they store each element of each tensor exactly once.
    // Ranks can share the reading of headers and then open only the files that they need.
    void index(const std::vector<std::string>& headers);
    void index();  // reads all headers itself
    // After index(): throws unless the checkpoint has exactly these tensors, with these shapes and dtypes.
    void expect_tensors(const std::vector<CheckpointTensor>& expected) const;
    // After index(): reads the elements of a box of a tensor, row by row, in the tensor's dtype.
    void read(const std::string& tensor, const Box& box, void* values) const;

  private:
    struct Stored {  // a piece in a file
        Box box;
        size_t file;
        int64_t offset;  // bytes
        DType dtype;
    };

    std::string path_of(const CheckpointFile& file) const { return folder_ + "/" + file.name; }
    std::string damaged_tensor(const CheckpointFile& file) const;
    void check_covered(const CheckpointTensor& tensor) const;

    std::string folder_;
    CheckpointInfo info_;
    std::map<std::string, std::vector<Stored>> stored_;
};

}  // namespace speedrun
