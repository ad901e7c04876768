// Runs a body once per rank of a thread world, each on its own thread.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/distributed/thread_world.h"

namespace speedrun::testing {

// Rethrows the first rank's error after all threads have ended.
inline void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options = {}) {
    const auto worlds = make_thread_worlds(size, options);
    std::vector<std::exception_ptr> errors(worlds.size());
    {
        std::vector<std::jthread> threads;
        for (size_t rank = 0; rank < worlds.size(); ++rank) {
            threads.emplace_back([&, rank] {
                try {
                    body(*worlds[rank]);
                } catch (...) {
                    errors[rank] = std::current_exception();
                    worlds[rank]->abort(ExitCode::failure, "another rank of the test failed");
                }
            });
        }
    }
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace speedrun::testing
