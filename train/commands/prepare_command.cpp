#include <cstdio>

#include "data/verify.h"
#include "kernels/device/error.h"
#include "train/commands/commands.h"

namespace speedrun {

int run_prepare(const PrepareOptions& options) {
    if (options.verify.empty()) {
        prepare_dataset(options);
        return 0;
    }
    if (!options.inputs.empty() || !options.out_dir.empty())
        throw_usage("prepare: --verify checks a dataset that is there; leave --input and --out away");
    std::printf("%s\n", verify_dataset(options.verify).c_str());
    return 0;
}

}  // namespace speedrun
