// The executor's emulation of kernels/cuda/blocks/bulk_copy.h: a pipeline of bulk copies in three orders of threads, boxes at the edges
// of a matrix, and the faults that it must detect.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "tests/errors.h"
#include "tests/simt/bulk_copy_kernel.h"
#include "tests/simt/fragments.h"

namespace speedrun::testing {
namespace {

using Planted = PipelineFault;

TensorMap map_of(const Tensor& x, int64_t sequence_length, int box_rows) {
    simt::SimtDevice device({});
    return map_rows(x, sequence_length, box_rows, *device.create_stream("test"));
}
Tensor tensor_of(Small& x) {
    return Tensor(x.data(), DType::bf16, {x.rows, x.cols});
}

std::vector<float> pipeline(simt::Order order, Small& a, Small& b, Planted fault = Planted::none) {
    std::vector<float> c(kPipelineRows * 64, NAN);
    run(order, kPipelineThreads, kPipelineBytes, pipeline_kernel, c.data(),
        map_of(tensor_of(a), a.rows, kPipelineRows), map_of(tensor_of(b), b.rows, kPipelineRows), a.cols / 64,
        fault);
    return c;
}

TEST(BulkCopy, PipelineMultiplies) {
    for (const int steps : {1, 2, 5}) {
        Small a = random_integers(kPipelineRows, 64 * steps, 1), b = random_integers(64, 64 * steps, 2),
              bt = transposed(b);
        for (const simt::Order order : kOrders) EXPECT_EQ(pipeline(order, a, b), product(a, bt)) << steps;
    }
}

// A removed call ends the launch, or gives NaN or wrong sums, in at least one order of threads.
TEST(BulkCopy, DetectsPlantedFaults) {
    Small a = random_integers(kPipelineRows, 5 * 64, 3), b = random_integers(64, 5 * 64, 4),
          bt = transposed(b);
    const std::string wrong = "wrong sums";
    const std::map<Planted, std::string> messages = {
        {Planted::no_init, "is not initialised"},
        {Planted::no_publish, "before its initialisation is published"},
        {Planted::no_block_barrier, "before its initialisation is published"},
        {Planted::arrival_without_bytes, "a product reads bytes that a bulk copy is writing"},
        {Planted::too_few_bytes, "16 bytes more than an mbarrier expects"},
        {Planted::too_many_bytes,
         "0 threads wait at a barrier, 0 in an exchange with missing lanes, 129 at an mbarrier"},
        {Planted::no_full_wait, "a product reads bytes that a bulk copy is writing"},
        {Planted::no_empty_wait, "arrives at an mbarrier that has all its 1 arrivals"},
        {Planted::no_empty_arrival, "nobody can go on"},
        {Planted::second_arrival, "nobody can go on"},
        {Planted::no_last_wait, "in flight at the end of the block"},
        {Planted::no_staging_barrier, wrong}};
    for (const auto& [fault, message] : messages) {
        std::string seen;
        for (const simt::Order order : kOrders) {
            try {
                if (pipeline(order, a, b, fault) != product(a, bt)) seen += wrong + "; ";
            } catch (const Error& error) {
                seen += error.what() + std::string("; ");
            }
        }
        EXPECT_THAT(seen, HasSubstr(message)) << static_cast<int>(fault);
    }
}

void box_kernel(float* out, TensorMap map, int x, int y, int z, int copies) {
    Bf16* const tile = shared_memory<Bf16>(0);
    auto* const barrier = static_cast<mbarrier::Barrier*>(shared_memory<mbarrier::Barrier>(16 * 128));
    if (threadIdx.x == 0) {
        mbarrier::init(barrier, 1);
        mbarrier::publish();
        mbarrier::expect_bytes(barrier, 16 * 128);
        for (int i = 0; i < copies; ++i) copy_box(tile, map, barrier, x, y, z);
    }
    __syncthreads();
    mbarrier::wait(barrier, 0);
    for (int i = static_cast<int>(threadIdx.x); i < 16 * 64; i += 32)
        out[i] = tile[tile::Panels<16>::offset(i / 64, i % 64 / 8) + i % 8];
}

// Sequences of 24 rows of a slice of wider rows: boxes end inside, at the end of a sequence and at the last column.
TEST(BulkCopy, OutsideOfTheMatrixIsZero) {
    Small storage = random_integers(48, 120, 5);
    const Tensor x = tensor_of(storage).column_slice(8, 104);
    struct At {
        int x, y, z;
    };
    for (const auto& [column, row, sequence] :
         {At{0, 0, 0}, At{0, 8, 1}, At{64, 16, 0}, At{64, 16, 1}, At{0, -4, 1}}) {
        std::vector<float> out(16 * 64, NAN);
        run(simt::Order::forward, 32, 16 * 128 + 8, box_kernel, out.data(), map_of(x, 24, 16), column, row,
            sequence, 1);
        for (int i = 0; i < 16; ++i) {
            for (int j = 0; j < 64; ++j) {
                const bool inside = row + i >= 0 && row + i < 24 && column + j < 104;
                const float expected =
                    inside ? float(storage(24 * sequence + row + i, 8 + column + j)) : 0.0f;
                ASSERT_EQ(out[static_cast<size_t>(64 * i + j)], expected)
                    << column << ", " << row << ": " << i << ", " << j;
            }
        }
    }
    const auto refused = [&](int box_rows, int sequence, int copies, const char* message) {
        std::vector<float> out(16 * 64);
        expect_error(ExitCode::failure, {message}, [&] {
            run(simt::Order::forward, 32, 32 * 128, box_kernel, out.data(), map_of(x, 24, box_rows), 0, 0,
                sequence, copies);
        });
    };
    refused(64, 0, 1, "a bulk copy ends outside the shared memory");
    refused(16, 2, 1, "a bulk copy of sequence 2 of 2");
    refused(8, 0, 2, "a bulk copy into bytes that another one is writing");
}

void bytes_kernel(int* out, const int* from, int begin, int bytes) {
    auto* const words = static_cast<int*>(shared_memory<int>(0, 64));
    auto* const barrier = static_cast<mbarrier::Barrier*>(shared_memory<mbarrier::Barrier>(256));
    if (threadIdx.x == 0) {
        mbarrier::init(barrier, 1);
        mbarrier::publish();
        mbarrier::expect_bytes(barrier, bytes);
        copy_bytes(words + begin, from + begin, bytes, barrier);
    }
    __syncthreads();
    mbarrier::wait(barrier, 0);
    for (int i = 0; i < bytes / 4; ++i) out[begin + i] = words[begin + i];
}

TEST(BulkCopy, CopiesBytes) {
    alignas(16) std::array<int, 64> from{};
    std::iota(from.begin(), from.end(), 1);
    const auto copied = [&](int begin, int bytes) {
        std::array<int, 64> out{};
        run(simt::Order::forward, 32, 256 + 8, bytes_kernel, out.data(), from.data(), begin, bytes);
        return out;
    };
    EXPECT_EQ(copied(0, 256), from);
    const std::array<int, 64> part = copied(4, 48);
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], i >= 4 && i < 16 ? from[i] : 0) << i;
    const char* const kUneven = "the addresses or bytes of a bulk copy are not multiples of 16";
    expect_error(ExitCode::failure, {kUneven}, [&] { copied(2, 16); });
    expect_error(ExitCode::failure, {kUneven}, [&] { copied(0, 24); });
    expect_error(ExitCode::failure, {"a bulk copy ends outside the shared memory"}, [&] { copied(0, 272); });
}

// Two groups of warps with a barrier each, and one that some threads only arrive at.
void named_kernel(int* out, int fault) {
    const auto words = shared_memory<int>(0, 128);
    const int thread = static_cast<int>(threadIdx.x);
    words[thread] = thread;
    if (thread < 64) {
        if (fault != 1) named_barrier::sync<64>(1);
        out[thread] = words[63 - thread];
        named_barrier::arrive<128>(3);
    } else {
        named_barrier::sync<64>(2);
        const int sum = words[191 - thread];
        if (fault == 2)
            named_barrier::sync<64>(3);
        else if (fault != 3)
            named_barrier::sync<128>(3);
        out[thread] = sum + out[thread - 64];
    }
}

TEST(BulkCopy, NamedBarriersOrderTheirThreads) {
    const auto result = [](simt::Order order, int fault) {
        std::vector<int> out(128, -1);
        run(order, 128, 512, named_kernel, out.data(), fault);
        return out;
    };
    std::vector<int> expected(128);
    for (int i = 0; i < 64; ++i) {
        expected[static_cast<size_t>(i)] = 63 - i;
        expected[static_cast<size_t>(64 + i)] = 127 - i + 63 - i;
    }
    for (const simt::Order order : kOrders) EXPECT_EQ(result(order, 0), expected);
    EXPECT_NE(result(simt::Order::forward, 1), expected);
    EXPECT_NE(result(simt::Order::reverse, 3), expected);
    expect_error(ExitCode::failure, {"named barrier 3 of 64 threads: others call it with 128"},
                 [&] { result(simt::Order::forward, 2); });
}

void registers_kernel(int large, int leaving) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == leaving) return;
    if (thread < 128)
        simt::warpgroup_registers(40, false);
    else
        simt::warpgroup_registers(large, true);
}

TEST(BulkCopy, RegistersAreOfWholeWarpgroups) {
    const auto with = [](int large, int leaving) {
        return [=] { run(simt::Order::forward, 384, 0, registers_kernel, large, leaving); };
    };
    EXPECT_NO_THROW(with(232, -1)());  // 128·40 + 256·232 = 64,512 = 384·168
    expect_error(ExitCode::failure, {"thread 200 has not changed its registers"}, with(232, 200));
    expect_error(ExitCode::failure, {"66560 registers, of 64512 of the block"}, with(240, -1));
    expect_error(ExitCode::failure, {"an increase to 160 registers"}, with(160, -1));
    expect_error(ExitCode::failure, {"an increase to 236 registers per thread, from 168"}, with(236, -1));
}

}  // namespace
}  // namespace speedrun::testing
