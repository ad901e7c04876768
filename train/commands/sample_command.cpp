#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "kernels/device/philox.h"
#include "train/commands/commands.h"
#include "train/commands/finished_run.h"
#include "train/commands/run_tokenizer.h"

namespace speedrun {

namespace {

// Samples an index with probability softmax(logits/temperature), from the first random word; returns the argmax at temperature
// 0.
int32_t draw(const std::vector<float>& logits, double temperature, const std::array<uint32_t, 4>& random) {
    const auto best = std::max_element(logits.begin(), logits.end());
    if (temperature <= 0) return static_cast<int32_t>(best - logits.begin());
    std::vector<double> weights;
    for (float logit : logits) weights.push_back(std::exp((logit - *best) / temperature));
    const double uniform = (static_cast<double>(random[0]) + 0.5) * 0x1p-32;
    double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i) {
        left -= weights[i];
        if (left <= 0) return static_cast<int32_t>(i);
    }
    return static_cast<int32_t>(best - logits.begin());
}

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

}  // namespace

int run_sample(const SampleOptions& options) {
    if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
        throw_usage("--temperature {}: expected 0 or more", options.temperature);
    const FinishedRun run = open_finished_run(options.run, options.settings, true);
    const auto tokenizer = tokenizer_of(run.config, options.vocabulary);
    std::vector<int32_t> context = {tokenizer->separator()};
    for (uint16_t token : tokenizer->encode(options.prompt)) context.push_back(token);

    Sampler sampler(run);
    std::printf("%s", options.prompt.c_str());
    for (int64_t i = 0; i < options.tokens; ++i) {
        const auto words = philox4x32({static_cast<uint32_t>(i), 0, 0, 0x736d706cu},
                                      philox_key(static_cast<uint64_t>(options.seed)));
        const int32_t token =
            draw(sampler.next_logits(context, tokenizer->separator()), options.temperature, words);
        if (token == tokenizer->separator()) break;  // end of the document
        context.push_back(token);
        std::printf("%s", tokenizer->decode(std::span(&context.back(), 1)).c_str());
        std::fflush(stdout);
    }
    std::printf("\n");
    return 0;
}

}  // namespace speedrun
