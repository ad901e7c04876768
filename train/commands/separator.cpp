#include "train/commands/separator.h"

#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/shard_patterns.h"
#include "kernels/device/error.h"

namespace speedrun {

int64_t separator_of(const Config& config) {
    try {
        const std::vector<std::string> files = expand_globs(config.data.val);
        if (!files.empty()) return find_dataset_info(files).value_or(DatasetInfo{}).separator;
    } catch (const Error&) {  // the data are missing; commands that need the separator report it later
    }
    return -1;
}

}  // namespace speedrun
