// Parts of the writers of the transformers library's folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"

namespace speedrun {

// A folder that gets its name when it is complete: until then it is FOLDER.part, which is removed without finish().
class HfStaging {
  public:
    // Throws a usage error if one of both exists.
    explicit HfStaging(std::string folder);
    ~HfStaging();
    HfStaging(const HfStaging&) = delete;
    HfStaging& operator=(const HfStaging&) = delete;

    std::string path() const { return folder_ + ".part"; }
    void finish();

  private:
    const std::string folder_;
};

// Creates a folder. Throws a usage error if it exists or cannot be created.
void make_hf_folder(const std::string& folder);

// Returns the index of the first value that is NaN or infinite, or -1.
int64_t first_not_finite(const std::vector<float>& values);

// Reads a parameter's values. Throws Error(diverged) if one is not finite.
std::vector<float> finite_values(const Parameter& p, const ReadMaster& read);

struct HfTensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;  // may be longer than the shape: padding rows are last
};
NamedTensor stored_tensor(HfTensor tensor, DType dtype);

struct HfGeneration {
    int64_t separator = 0;
    bool has_cache = true;  // generation keeps keys and values
};
// Writes generation_config.json: the tokens that begin and end a text.
void write_generation_config(const std::string& folder, const HfGeneration& generation);

}  // namespace speedrun
