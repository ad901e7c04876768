// The cases of op_bench in Google Benchmark, on the CPU, with its filters, repetitions, statistics and
// comparisons (--help). Each call is timed by device events; rates use the FLOPs and the minimum bytes of a
// call.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <string>

#include "kernels/cpu/isa.h"
#include "tests/bench/guarded_main.h"
#include "tests/bench/run_case.h"

namespace speedrun::bench {
namespace {

struct Options {
    bool small = false;
    DType compute_dtype = DType::bf16;
    int threads = 0;
};

constexpr const char* kUsage =
    "usage: ops_benchmark [--small] [--dtype=bf16|f32] [--threads=N] [--benchmark_filter=REGEX] ...\n"
    "  --small    small shapes, for a test of seconds; otherwise the shapes of the 124M models\n"
    "  --threads  0: all\n"
    "Everything else is Google Benchmark's. Exit codes: 0 done; 1 a case failed, or an operation has none; 2 "
    "bad usage.\n";

// Options left in argv are for Google Benchmark.
Options take_options(int& argc, char** argv) {
    Options options;
    int kept = 1;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--small") {
            options.small = true;
        } else if (argument == "--dtype=bf16" || argument == "--dtype=f32") {
            options.compute_dtype = argument == "--dtype=f32" ? DType::f32 : DType::bf16;
        } else if (argument.starts_with("--threads=")) {
            const char* const number = argv[i] + std::string("--threads=").size();
            char* end = nullptr;
            const long threads = std::strtol(number, &end, 10);
            if (*end != '\0' || end == number || threads < 0 || threads > 4096)
                throw_usage("{}: expected a number from 0 to 4096", argument);
            options.threads = static_cast<int>(threads);
        } else {
            if (argument == "--help") std::printf("%s\n", kUsage);
            argv[kept++] = argv[i];
        }
    }
    argc = kept;
    return options;
}

struct Bench {
    Backend backend;
    std::unique_ptr<Stream> stream;
    DType compute_dtype;
    std::set<std::string> timed;
    int num_failed = 0;
};

void run(benchmark::State& state, const Case& c, Bench& bench) {
    std::unique_ptr<PreparedCase> prepared;
    try {
        prepared = std::make_unique<PreparedCase>(c, bench.backend, *bench.stream, bench.compute_dtype);
        const auto begin = bench.backend.device->create_event(EventKind::timed),
                   end = bench.backend.device->create_event(EventKind::timed);
        for (const auto& call : prepared->calls()) call();
        bench.stream->synchronize();
        size_t next = 0;
        for (auto _ : state) {
            bench.stream->record(*begin);
            prepared->calls()[next++ % prepared->calls().size()]();
            bench.stream->record(*end);
            bench.stream->synchronize();
            state.SetIterationTime(end->elapsed_ms_since(*begin) * 1e-3);
        }
        prepared->check_outputs();
    } catch (const std::exception& error) {
        settle(*bench.stream);
        ++bench.num_failed;
        return state.SkipWithError(error.what());
    }
    state.SetBytesProcessed(state.iterations() * prepared->bytes());
    if (c.flops > 0) {
        state.counters["FLOP/s"] = benchmark::Counter(c.flops, benchmark::Counter::kIsIterationInvariantRate);
    }
    state.SetLabel(c.shape);
    bench.timed.insert(c.op);
}

int run_all(int argc, char** argv) {
    const Options options = take_options(argc, argv);
    const bool partial = std::any_of(argv + 1, argv + argc, [](const std::string& argument) {
        return argument.starts_with("--benchmark_filter") || argument.starts_with("--benchmark_list_tests");
    });
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(ExitCode::usage);
    if (options.compute_dtype == DType::bf16 && !cpu_has_bf16())
        std::fprintf(stderr, "note: CPU level %s has no bf16 matmuls; runs use --dtype=f32 here\n",
                     name_of(cpu_isa()));

    Bench bench{make_cpu_backend(options.threads), nullptr, options.compute_dtype, {}, 0};
    if (options.small) bench.backend.cache_bytes = 0;
    bench.stream = bench.backend.device->create_stream("compute");
    const std::vector<Case> cases = all_cases(options.small ? small_shapes() : full_shapes());
    for (const Case& c : cases) {
        benchmark::RegisterBenchmark(c.name.c_str(),
                                     [&c, &bench](benchmark::State& state) { run(state, c, bench); })
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    if (bench.num_failed > 0) throw_internal("{} cases failed", bench.num_failed);
    const std::vector<std::string> missing = operations_without_case(bench.timed);
    if (!partial && !missing.empty())
        throw_internal("operations without a case: {}", fmt::join(missing, ", "));
    return 0;
}

}  // namespace
}  // namespace speedrun::bench

int main(int argc, char** argv) {
    return speedrun::bench::guarded_main(speedrun::bench::run_all, argc, argv);
}
