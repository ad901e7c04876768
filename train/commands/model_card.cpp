#include "train/commands/model_card.h"

#include <filesystem>

#include "data/json_text.h"
#include "data/text_file.h"
#include "train/runlog/build_info.h"
#include "train/runlog/metrics_json.h"
#include "train/runlog/run_origin.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kMillion = 1e6;

std::string origin_row(const RunOrigin& origin) {
    return fmt::format("| started from | `{}`{} |\n", origin.path,
                       origin.step < 0 ? "" : fmt::format(", step {}", origin.step));
}

// Returns the rows about the data; a mixture has its sources instead of a name.
std::string data_rows(const DataConfig& data, const std::string& dataset) {
    if (data.sources.empty()) return dataset.empty() ? "" : fmt::format("| data | {} |\n", dataset);
    std::string rows;
    for (const DataSource& source : data.sources)
        rows += fmt::format("| data, weight {} | `{}` |\n", source.weight, fmt::join(source.files, "`, `"));
    if (!dataset.empty()) rows += fmt::format("| validation data | {} |\n", dataset);
    return rows;
}

// Returns the rows about training; empty for a run without a readable summary.json, such as an import.
std::string training_rows(const FinishedRun& run) {
    const std::string path = run.folder + "/summary.json";
    std::error_code error;
    if (run.folder.empty() || !std::filesystem::exists(path, error)) return "";
    try {
        const Json summary = parse_json<Json>(read_text_file(path));
        std::string rows = fmt::format("| training | {} steps, {:.2f}M tokens, {:.1f} s on {} ranks |\n",
                                       value_of(summary, &RunSummary::steps),
                                       static_cast<double>(value_of(summary, &RunSummary::tokens)) / kMillion,
                                       value_of(summary, &RunSummary::train_ms) / 1e3,
                                       value_of(summary, &RunSummary::ranks));
        if (const Json& loss = summary.at(field_of(&RunSummary::val_loss).key); loss.is_number())
            rows += fmt::format("| validation loss | {:.4f} nats per token |\n", loss.get<double>());
        if (const auto origin = summary.find("origin"); origin != summary.end())
            rows += origin_row(run_origin_from_json(origin->dump(), path));
        return rows;
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "warning: %s: %s; the model card is without it\n", path.c_str(), failure.what());
        return "";
    }
}

std::string example_of(const ModelCard& card) {
    const char* const trust = card.has_code ? ", trust_remote_code=True" : "";
    return fmt::format(R"(
## Sample
A text begins with the separator `<|endoftext|>`.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # of this file
tokenizer = AutoTokenizer.from_pretrained(folder{0})
model = AutoModelForCausalLM.from_pretrained(folder{0})
inputs = tokenizer("<|endoftext|>In the beginning", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50, do_sample=True, temperature=0.8)[0]))
```

With `do_sample=False` and weights in f32, this is the text of
`speedrun sample RUN --prompt "In the beginning" --temperature 0 --tokens 50 --set precision=f32`. Sampling in bf16 rounds
differently, and its text may differ.
)",
                       trust);
}

}  // namespace

std::string model_card(const FinishedRun& run, const ModelCard& card) {
    const ModelConfig& model = run.config.model;
    std::string text = fmt::format(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- speedrun\n---\n# {}\n"
        "Trained and exported by speedrun {}.\n\n| | |\n|---|---|\n"
        "| architecture | {}, {} layers x {}, sequences of {} tokens |\n| parameters | {:.2f}M |\n",
        card.title, build_info().version, card.architecture, model.parts.num_layers(), model.model_dim,
        run.config.in_validation().batch.sequence_length.entries().front().from,
        static_cast<double>(run.runner->state().model().table().numel()) / kMillion);
    if (!card.tokens.empty()) text += fmt::format("| tokenizer | {} |\n", card.tokens);
    text += data_rows(run.config.data, card.dataset);
    text += training_rows(run);
    if (!card.tokens.empty()) text += example_of(card);
    return text;
}

}  // namespace speedrun
