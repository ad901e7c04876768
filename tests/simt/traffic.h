// Memory traffic of a launch, counted as in hardware. A warp's lanes at one instruction form one request. A request
// to device memory touches sectors of 32 bytes; one to shared memory takes wavefronts of 32 banks of 4 bytes.
// Sources: CUDA C++ Programming Guide, "Global Memory" and "Shared Memory" of compute capability 5.x and above.
// Requests of 8 and 16 bytes per lane access shared memory by half and quarter warps. Lanes run one after the other
// here, so their n-th accesses at one instruction are counted as one request.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/simt/watch.h"

namespace speedrun::simt {

// Units moved, and the minimum number that holds the requested bytes.
struct Moved {
    int64_t units = 0, least = 0;
    double ratio() const { return least > 0 ? static_cast<double>(units) / static_cast<double>(least) : 1.0; }
};

struct Traffic {
    Moved loads, stores;                // 32-byte sectors of device memory
    Moved stored_lines;                 // 128-byte lines, the unit of L2, of the stores
    Moved shared_loads, shared_stores;  // wavefronts
    int64_t distinct_bytes = 0;  // device memory: sectors read plus sectors written, each once per launch
    int64_t mma = 0;             // matmuls of a warp
    int64_t barriers = 0;        // block barriers
    int64_t launches = 0;
};

class TrafficWatch final : public Watch {
  public:
    // Keyed by kernel_name().
    const std::map<std::string, Traffic>& by_kernel() const { return by_kernel_; }

    void begin_launch(const Launch& launch) override;
    void begin_block(unsigned num_threads, int64_t shared_bytes) override;
    void access(const Access& access) override;
    void block_barrier() override { ++traffic_->barriers; }
    void warp_barrier(unsigned /*warp*/) override {}
    void mma(unsigned thread) override { traffic_->mma += thread % kWarpSize == 0; }
    void bulk_begin(unsigned thread, int key, uintptr_t to, int bytes) override;
    void end_block() override;
    void end_launch() override;

  private:
    struct Request {
        bool shared, store;
        int bytes, count;  // bytes per lane; lanes so far
        uintptr_t address[kWarpSize];
    };
    void close(const Request& request);

    std::map<std::string, Traffic> by_kernel_;
    Traffic* traffic_ = nullptr;  // traffic of the running launch
    std::unordered_set<uintptr_t> sectors_read_, sectors_written_;
    // An instruction's accesses so far, by thread; requests that more lanes may join, by warp and index.
    struct Instruction {
        std::vector<uint32_t> count;
        std::unordered_map<uint64_t, Request> open;
    };
    std::unordered_map<uintptr_t, Instruction> instructions_;  // key: location and kind
    unsigned num_threads_ = 0;
};

}  // namespace speedrun::simt
