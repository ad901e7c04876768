#include "train/commands/commands.h"

namespace speedrun {

int run_prepare(const PrepareOptions& options) {
    prepare_dataset(options);
    return 0;
}

}  // namespace speedrun
