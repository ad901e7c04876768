// Runs a body once per rank of a thread world, each in its own thread.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/distributed/thread_world.h"

namespace speedrun::testing {

// Rethrows the first error after all threads have ended; errors of other ranks are its consequences.
inline void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options = {}) {
    const auto worlds = make_thread_worlds(size, options);
    std::exception_ptr first;
    std::mutex mutex;
    {
        std::vector<std::jthread> threads;
        for (size_t rank = 0; rank < worlds.size(); ++rank) {
            threads.emplace_back([&, rank] {
                try {
                    body(*worlds[rank]);
                } catch (...) {
                    {
                        const std::scoped_lock lock(mutex);
                        if (!first) first = std::current_exception();
                    }
                    worlds[rank]->abort(ExitCode::failure, "another rank of the test failed");
                }
            });
        }
    }
    if (first) std::rethrow_exception(first);
}

}  // namespace speedrun::testing
