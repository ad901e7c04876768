// gradients: loss and raw gradients of one row, for porting a recipe.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/commands/separator.h"
#include "train/config/config_json.h"
#include "train/engine/row_gradients.h"

namespace speedrun {

namespace {

int64_t separator_for(const GradientsOptions& options, const Config& config) {
    if (options.separator) {
        if (*options.separator >= config.model.vocab_size)
            throw_usage("--separator {}: model.vocab_size is {}", *options.separator,
                        config.model.vocab_size);
        return *options.separator;
    }
    if (const int64_t separator = separator_of(config); separator >= 0 || !config.data.document_mask)
        return separator;
    throw_usage(
        "gradients: attention stays within documents (data.document_mask), but nothing says which token they start with: "
        "data.val of the config leads to no dataset.json. Say --separator N (GPT-2: 50256), or --set "
        "data.document_mask=false");
}

}  // namespace

int run_gradients(const GradientsOptions& options) {
    const Config config = read_config(options.config, options.settings);
    config.in_chosen_stage(options.stage);  // throws if the stage does not exist
    const int64_t stage = options.stage.value_or(config.schedule.num_stages() - 1);
    const TokenRow row{.tokens = read_token_row(options.tokens, options.length),
                       .separator = separator_for(options, config)};
    const RowGradients result = row_gradients(config, stage, options.weights, row);
    if (!std::isfinite(result.loss_sum) || !std::isfinite(result.gradient_norm)) {
        throw Error(
            ExitCode::diverged,
            fmt::format(
                "{}: loss {}, norm of the gradients {}: the weights or their activations are not finite; {} is not written",
                options.weights, result.loss_sum, result.gradient_norm, options.out));
    }
    write_safetensors(options.out, result.tensors);
    std::printf("%s: %lld targets, loss %.6f nats mean, %.4f sum; gradients of %.9g x the sum, norm %.6g\n",
                options.out.c_str(), static_cast<long long>(result.targets), result.loss_mean(),
                result.loss_sum, static_cast<double>(result.gradient_scale), result.gradient_norm);
    return 0;
}

}  // namespace speedrun
