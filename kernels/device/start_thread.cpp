#include "kernels/device/start_thread.h"

#include "kernels/device/error.h"
#include "kernels/device/host_limits.h"

namespace speedrun {

void throw_no_thread(const std::string& name, const std::system_error& error) {
    throw_usage("cannot start a thread ({}): {}; {}. Use fewer (--set threads=1), or raise the limit", name,
                error.code().message(), describe_task_limits());
}

}  // namespace speedrun
