// Internals of the executor behind executor.h.
#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstddef>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/simt/bulk_copies.h"
#include "tests/simt/executor.h"
#include "tests/simt/simt_device.h"
#include "tests/simt/warpgroup.h"
#include "tests/simt/watch.h"

namespace speedrun::simt {

constexpr size_t kStackBytes = 128 << 10;
constexpr std::byte kPoison{0xff};  // unwritten shared memory

// A warpgroup's matmul as seen by one thread: the fragment of its sums.
struct Product {
    float* sums;
    int tiles;
    bool a_shared;
    OperandForm form;
    bool add;
    uint64_t a_matrix, b_matrix;
    std::vector<uint16_t> a, b;  // bits for the fragment: 2 rows of a, 2·tiles columns of b, depth() each
    int depth() const { return form.e4m3 ? 32 : 16; }
    Where where;
};
struct WarpgroupProducts {
    struct Sums {
        float* at;
        std::vector<float> values;
        int pending;  // pending matmuls
    };
    std::deque<std::vector<Product>> groups;  // groups of matmuls; the last one is open
    std::vector<Sums> sums;
    bool begun = false;        // begin() was called since the last wait
    size_t count = 0;          // matmuls since the block began
    int64_t proxy_fences = 0;  // calls of fence_async_proxy() since the block began
};

struct Thread {
    enum class State : uint8_t { fresh, ready, at_barrier, at_exchange, at_mbarrier, at_named_barrier, done };
    struct Copy {
        void* to;
        const void* from;
        int bytes, valid;
    };

    Position position;
    State state = State::fresh;
    Where where;                           // call in which it waits
    boost::context::fiber fiber;           // its suspended context, if it waits or is ready again
    std::deque<std::vector<Copy>> copies;  // groups of asynchronous copies; the last one is open
    WarpgroupProducts products;
    bool waited = false;         // called wait_for_prior_kernels()
    std::vector<int> registers;  // arguments of warpgroup_registers()
};

struct BulkCopy {
    uint32_t to;  // offset in shared memory
    int bytes;
    std::vector<std::pair<uint32_t, std::array<std::byte, 16>>> chunks;  // key: offset in shared memory
};
// State of an mbarrier; its shared memory is not used.
struct Mbarrier {
    const Thread* initialiser;
    int64_t block_barriers;  // passed by the block before init()
    int expected, pending;   // arrivals of a phase; those that are missing
    int64_t bytes = 0;       // expected and not delivered
    int phase = 0;
    bool published = false;
    int agent;                     // index among the block's mbarriers
    std::vector<BulkCopy> copies;  // in flight
    std::vector<Thread*> waiting;
    int key() const { return agent; }
};
struct NamedBarrier {
    static constexpr int kCount = 16, kFirstKey = 1 << 10;
    int threads = 0, arrived = 0;  // since the last completion
    std::vector<Thread*> waiting;
};

class Executor {
  public:
    void run(const Launch& launch, const Options& options);

    void barrier(Where where);
    Exchange& arrive(uint32_t mask, const void* value, size_t bytes, Where where);
    void leave(Exchange& exchange);
    [[noreturn]] void fail(const std::string& what, const Where* where) const;
    void note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction);
    void note_mma();
    // Records that a copy by the running thread has arrived: matmuls may read it once that thread has
    // published.
    void arrived(const void* shared, size_t bytes);
    void multiply(Product product, const uint32_t* a);
    void finish_products(int groups_in_flight);
    void note_fence();
    void note_proxy_fence();
    void note_atomic(const void* address);
    void warp_barrier(uint32_t mask, Where where);
    void mbarrier_init(uint64_t* barrier, int arrivals, const Where& where);
    void mbarrier_publish();
    void mbarrier_arrive(uint64_t* barrier, int64_t bytes, const Where& where);
    void mbarrier_wait(uint64_t* barrier, int parity, const Where& where);
    void copy_box(void* tile, const TensorMap& map, uint64_t* barrier, const BoxAt& at, const Where& where);
    // orders: for the watch, too.
    void named_barrier(int id, int threads, bool waits, bool orders, const Where& where);
    void change_registers(int count, bool increase, const Where& where);
    bool removed(const Where& where);  // True if the watch plants the removal of this call.
    Thread& self() { return *running_; }

    Statistics statistics;

  private:
    void run_block(dim3 index);
    void run_thread(Thread& thread);
    void carry();  // body of a fiber: runs fresh threads one by one
    void suspend();
    void finished(Thread& thread);
    Thread* pick();
    void make_ready(const std::vector<Thread*>& ascending);
    void check_red_zones() const;
    std::string stuck() const;
    // Reads the current bits of a matmul's operands in shared memory, and reports the reads.
    void read_operands(Product& product);
    void note_operand(uint64_t matrix, bool transposed, int rows, const Where& where);
    void check_warpgroup(const Product& product);
    void check_products() const;
    Mbarrier& barrier_at(uint64_t* barrier, const Where& where);
    void advance(Mbarrier& b, const Where& where);
    void check_bulk_copies() const;
    void check_registers() const;
    int registers_at_entry() const;  // registers of a thread, with one block per multiprocessor

    const Launch* launch_ = nullptr;
    Options options_;
    std::vector<DeviceRange> device_memory_;  // only with a watch
    std::mt19937_64 random_;
    boost::context::pooled_fixedsize_stack stacks_{kStackBytes, 16};

    std::vector<Thread> threads_;
    std::vector<Thread*> ready_;  // a stack: the last one runs next, except in random order
    std::vector<Thread*> met_;    // lanes of the completed exchange
    std::vector<uint32_t> shared_;
    Thread* running_ = nullptr;
    Thread* next_ = nullptr;
    bool carrier_idle_ = false;
    unsigned num_at_barrier_ = 0, num_done_ = 0;
    Where barrier_where_;  // location of barrier_first_, the first thread to arrive
    unsigned barrier_first_ = 0;
    std::vector<std::vector<Exchange*>> open_;  // incomplete exchanges per warp
    std::vector<std::unique_ptr<Exchange>> exchanges_;
    std::vector<Exchange*> free_exchanges_;
    struct Arrival {
        const Thread* thread;
        int64_t proxy_fences;  // calls of fence_async_proxy() by that thread until then
    };
    std::vector<Arrival> arrivals_;           // index: 16-byte chunk of shared memory
    std::vector<bool> filling_;               // same index: a bulk copy is writing the chunk
    std::map<uint32_t, Mbarrier> mbarriers_;  // key: offset in shared memory
    std::array<NamedBarrier, NamedBarrier::kCount> named_barriers_;
    std::vector<std::vector<Product>> warpgroups_;  // matmuls started by each warpgroup
    std::exception_ptr error_;

    boost::context::fiber scheduler_;
    std::vector<boost::context::fiber> idle_;  // declared last: unwinds while the other members exist
};

// Executor of the calling thread.
Executor& executor();

}  // namespace speedrun::simt
