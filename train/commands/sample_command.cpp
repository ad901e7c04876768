#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "kernels/device/philox.h"
#include "train/commands/finished_run.h"
#include "train/commands/run_tokenizer.h"
#include "train/commands/sample.h"
#include "train/commands/token_draw.h"

namespace speedrun {

namespace {

class Sampler {
  public:
    explicit Sampler(const FinishedRun& run) : run_(run), model_(run.runner->state().validation_model()) {}

    // Returns logits of the token after `context`, of which at most the last sequence_length tokens are used.
    std::vector<float> next_logits(const std::vector<int32_t>& context, int32_t separator) {
        const auto size = static_cast<int64_t>(context.size());
        const int64_t length = model_.shape().batch.sequence_length, used = std::min(size, length);
        Batch batch;  // the first row; other rows are zeros
        batch.tokens.assign(model_.tokens(), 0);
        std::copy(context.end() - used, context.end(), batch.tokens.begin());
        batch.targets.assign(model_.tokens(), -1);
        forward_batch(run_, batch, separator);
        Stream& stream = run_.runtime->compute();
        const Tensor logits = model_.logits_of(used - 1);
        std::vector<char> raw(logits.bytes());
        run_.runtime->device().copy(raw.data(), logits.data, logits.bytes(), stream);
        stream.synchronize();
        std::vector<float> values(run_.config.model.vocab_size);
        const Softcap cap = model_.description().head->softcap();
        for (size_t i = 0; i < values.size(); ++i) {
            values[i] = logits.dtype == DType::bf16 ? float(reinterpret_cast<const Bf16*>(raw.data())[i])
                                                    : reinterpret_cast<const float*>(raw.data())[i];
            if (cap.present()) values[i] = cap.of(values[i]);
            if (std::isnan(values[i]))
                throw Error(ExitCode::diverged, "the model's logits are not numbers: the run has diverged");
        }
        return values;
    }

  private:
    const FinishedRun& run_;
    Transformer& model_;
};

// Writes samples of prompts to stdout.
class TextSampler {
  public:
    TextSampler(const FinishedRun& run, const SampleOptions& options)
        : options_(options),
          tokenizer_(tokenizer_of(run, options.vocabulary)),
          sampler_(run),
          draw_{.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p} {}

    void write(const std::string& prompt) {
        for (int64_t i = 0; i < options_.samples; ++i) {
            if (i > 0) std::printf("---\n");
            write_one(prompt, i);
        }
    }

  private:
    // The random numbers of a sample are a function of the seed, its number and the position alone.
    void write_one(const std::string& prompt, int64_t sample) {
        std::vector<int32_t> context = {tokenizer_->separator()};
        for (const uint16_t token : tokenizer_->encode(prompt)) context.push_back(token);
        std::fwrite(prompt.data(), 1, prompt.size(), stdout);
        for (int64_t i = 0; i < options_.tokens; ++i) {
            const auto words =
                philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(sample), 0, 0x736d706cu},
                           philox_key(static_cast<uint64_t>(options_.seed)));
            const int32_t token =
                draw_token(sampler_.next_logits(context, tokenizer_->separator()), draw_, words[0]);
            if (token == tokenizer_->separator()) break;  // end of the document
            context.push_back(token);
            const std::string text = tokenizer_->decode(std::span(&context.back(), 1));
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
        }
        std::printf("\n");
        std::fflush(stdout);
    }

    const SampleOptions& options_;
    const std::unique_ptr<Tokenizer> tokenizer_;
    Sampler sampler_;
    const DrawOptions draw_;
};

void answer_lines(TextSampler& sampler) {
    const bool asks = isatty(STDIN_FILENO) == 1;
    const auto ask = [&] {
        if (!asks) return;
        std::printf("> ");
        std::fflush(stdout);
    };
    ask();
    for (std::string line; std::getline(std::cin, line); ask()) {
        if (line.ends_with('\r')) line.pop_back();
        sampler.write(line);
    }
    if (asks) std::printf("\n");
}

}  // namespace

void add_sample_options(CLI::App& sample, SampleOptions& options) {
    sample.add_option("--prompt", options.prompt, "text to continue");
    sample.add_flag("--interactive", options.interactive,
                    "read prompts from standard input, one per line, and continue each of them");
    sample
        .add_option("--tokens", options.tokens, "tokens to generate at most; a sample ends with its document")
        ->capture_default_str()
        ->check(CLI::Range(0, 1000000));
    sample.add_option("--samples", options.samples, "samples of each prompt, separated by a line ---")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000000));
    sample.add_option("--temperature", options.temperature, "0: always the most likely token")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 100.0));
    sample.add_option("--top-k", options.top_k, "draw from the K most likely tokens only; 0: from all")
        ->capture_default_str()
        ->check(CLI::Range(0, 65536));
    sample
        .add_option(
            "--top-p", options.top_p,
            "draw from the fewest most likely tokens with a probability of P in all, after --top-k; 1: all")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1.0));
    sample.add_option("--vocab", options.vocabulary,
                      "tiktoken file or tokenizer.json, if the run has no vocabulary");
    sample.add_option("--seed", options.seed, "of the random draws")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    sample.footer(
        "A sample is a function of the run, the prompt, the seed and its number: it does not depend on --samples,\n"
        "and a line of --interactive has the samples of --prompt LINE. Needs the run folder alone, without its data.");
}

int run_sample(const SampleOptions& options) {
    if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
        throw_usage("--temperature {}: expected 0 or more", options.temperature);
    if (!(options.top_p > 0 && options.top_p <= 1))
        throw_usage("--top-p {}: expected more than 0, and at most 1", options.top_p);
    if (options.interactive && !options.prompt.empty())
        throw_usage("--interactive reads prompts from standard input: leave out --prompt");
    const FinishedRun run = open_finished_run(options.run, options.settings, true);
    TextSampler sampler(run, options);
    if (options.interactive)
        answer_lines(sampler);
    else
        sampler.write(options.prompt);
    return 0;
}

}  // namespace speedrun
