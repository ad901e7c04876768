// Times every operation of kernels/ops/ops.h and prints it next to its roofline bound and published figures.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <regex>
#include <set>

#include "kernels/ops/metered_ops.h"
#include "tests/bench/guarded_main.h"
#include "tests/bench/report.h"
#include "train/config/choices.h"

namespace speedrun::bench {
namespace {

constexpr int kSkipped = 77;  // exit code for a skip, for scripts and ctest

struct Options {
    std::string device = "cpu", scale = "full", filter, json, dtype = "bf16";
    std::string products = word_of(CudaLibraries().products), attention = word_of(CudaLibraries().attention);
    double seconds = 0.3;
    int threads = 0;
    bool list = false;
};

std::vector<Case> selected_cases(const Options& options) {
    std::vector<Case> cases = all_cases(options.scale == "small" ? small_shapes() : full_shapes()), selected;
    try {
        const std::regex filter(options.filter);
        for (Case& c : cases) {
            if (std::regex_search(c.name, filter)) selected.push_back(std::move(c));
        }
    } catch (const std::regex_error& error) {
        throw_usage("--filter '{}': {}", options.filter, error.what());
    }
    if (selected.empty()) throw_usage("--filter '{}' selects none of the cases; see --list", options.filter);
    return selected;
}

int run(const Options& options) {
    std::vector<Case> cases = selected_cases(options);
    if (options.list) {
        for (const Case& c : cases) fmt::print("{:<44}{:>22}  {}\n", c.name, c.shape, c.op);
        return 0;
    }
    const DType compute_dtype = choice_of<DType>(options.dtype);
    const CudaLibraries libraries{choice_of<MatmulKind>(options.products),
                                  choice_of<AttentionKind>(options.attention)};
    Backend backend =
        options.device == "cuda" ? make_cuda_backend(libraries) : make_cpu_backend(options.threads);
    if (!backend.missing.empty()) {
        std::fprintf(stderr, "skipped: %s\n", backend.missing.c_str());
        return kSkipped;
    }
    Report report(options.json, options.scale, compute_dtype, libraries);
    const bool small = options.scale == "small";
    if (small) backend.cache_bytes = 0;
    const auto stream = backend.device->create_stream("compute");
    // Keeps the device busy while the host enqueues a batch of calls.
    const Buffer head_start(*backend.device, "bench", MemoryCategory::workspace, backend.head_start_bytes);
    const Tensor ballast = head_start.tensor(DType::f32, {head_start.bytes() / size_of(DType::f32)});
    Timer timer(*backend.device, *stream, [&] {
        if (ballast.numel() > 0) backend.ops->fill({.x = ballast, .value = 1.0f}, *stream);
    });
    std::string warning;
    const BackendPeaks peaks = measure_backend(backend, *stream, compute_dtype, small ? 16 : 1, warning);
    report.header(backend, peaks, warning);

    const TimingOptions timing{.seconds = options.seconds};
    std::set<std::string> timed;
    int num_failed = 0;
    for (Case& c : cases) {
        if (options.device != "cuda" || small) c.published.clear();  // published for a GPU at full size
        std::fprintf(stderr, "running %s\n", c.name.c_str());  // the last such line names a case that hangs
        const size_t num_notes = backend.ops->notes().size();
        const Measurement measurement = run_case(c, backend, *stream, timer, compute_dtype, timing);
        // Skips the figure if other kernels replaced cuDNN or wgmma.
        const bool may_be_replaced =
            libraries.attention != AttentionKind::native || libraries.products == MatmulKind::wgmma;
        if (const auto notes = backend.ops->notes(); may_be_replaced && notes.size() > num_notes) {
            fmt::print("{:<44}left out: {}\n", c.name, notes.back());
            continue;
        }
        report.result(c, measurement, peaks);
        if (measurement.failure.empty()) timed.insert(c.op);
        num_failed += !measurement.failure.empty();
    }
    if (num_failed > 0) throw_internal("{} of {} cases failed", num_failed, cases.size());
    const std::vector<std::string> missing = operations_without_case(timed);
    if (options.filter.empty() && !missing.empty())
        throw_internal("operations without a case: {}", fmt::join(missing, ", "));
    fmt::print("{} cases, {} of {} operations\n", cases.size(), timed.size(), all_operations().size());
    return 0;
}

int main_with(int argc, char** argv) {
    CLI::App app(
        "Times every operation at the shapes of the 124M models and compares it with its roofline bound,\n"
        "the larger of FLOPs and minimum bytes over the peaks measured in the same run.");
    app.footer(
        "Each case runs in rotation over sets of tensors larger than the last cache, on random values, with\n"
        "events around each call; afterwards every output must be written and finite.\n"
        "Exit codes: 0 done; 1 a case failed or an operation has none; 2 bad usage or no such device;\n"
        "            3 the JSON file cannot be written; 77 this attention is not available.");
    Options options;
    app.add_option("--device", options.device, "what to time")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    app.add_option("--scale", options.scale,
                   "full: the 124M shapes; small: small shapes, for a test of seconds")
        ->check(CLI::IsMember({"full", "small"}))
        ->capture_default_str();
    app.add_option("--filter", options.filter, "only cases with a matching name")->type_name("REGEX");
    app.add_option("--json", options.json, "append each result immediately, one JSON object per line")
        ->type_name("FILE");
    app.add_option("--dtype", options.dtype, "compute type")
        ->check(CLI::IsMember({"bf16", "f32"}))
        ->capture_default_str();
    app.add_option("--products", options.products,
                   "cuda: matmuls by cuBLASLt or by our own kernels; wgmma: those with an epilogue by "
                   "our kernel for compute capability 9.0")
        ->check(CLI::IsMember(words_of<MatmulKind>()))
        ->capture_default_str();
    app.add_option(
           "--attention", options.attention,
           "cuda: attention by our own kernels, by the ones for compute capability 9.0 only, or by cuDNN; the last "
           "two require whole sequences on one rank")
        ->check(CLI::IsMember(words_of<AttentionKind>()))
        ->capture_default_str();
    app.add_option("--seconds", options.seconds, "maximum measured time of a case (at least three calls)")
        ->check(CLI::Range(0.0, 60.0))
        ->capture_default_str();
    app.add_option("--threads", options.threads, "CPU threads; 0: all")->check(CLI::Range(0, 4096));
    app.add_flag("--list", options.list, "print the cases and stop");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    return run(options);
}

}  // namespace
}  // namespace speedrun::bench

int main(int argc, char** argv) {
    return speedrun::bench::guarded_main(speedrun::bench::main_with, argc, argv);
}
