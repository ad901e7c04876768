// Exchange with the transformers library. A GPT-2 saved by it (fixtures/hf_gpt2, fixtures/generate_hf.py) gives the
// same losses and training steps here. Export is bitwise equal to the import. Mismatches are named.
// Covers: train/hf/*.cpp
#include "train/hf/hf_gpt2.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/data/test_files.h"
#include "tests/distributed/rank_threads.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/config_json.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/hf/hf_names.h"
#include "train/model/build_model.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::hf_gpt2_test {

using Json = nlohmann::json;

const std::string kFolder = std::string(SPEEDRUN_TRAIN_FIXTURES) + "/hf_gpt2";

// Batches of the fixture. Each of several ranks receives its rows.
class Batches final : public BatchSource {
  public:
    explicit Batches(const Json& expected, size_t rank = 0, size_t num_ranks = 1)
        : expected_(expected),
          length_(expected["sequence_length"].get<size_t>()),
          size_(length_ * expected["rows"].get<size_t>() / num_ranks),
          first_(rank * size_) {
        for (size_t t = 0; t < size_; ++t) {
            batch_.positions.push_back(static_cast<int32_t>(t % length_));
            batch_.first_key.push_back(static_cast<int32_t>(t / length_ * length_));
        }
    }
    const Batch& next() override {
        batch_.tokens = part(expected_["tokens"][step_]);
        batch_.targets = part(expected_["targets"][step_]);
        batch_.valid_targets = valid(batch_.targets);
        batch_.step_targets = valid(expected_["targets"][step_++].get<std::vector<int32_t>>());
        return batch_;
    }

  private:
    std::vector<int32_t> part(const Json& values) const {
        const auto all = values.get<std::vector<int32_t>>();
        return {all.begin() + static_cast<ptrdiff_t>(first_),
                all.begin() + static_cast<ptrdiff_t>(first_ + size_)};
    }
    static int64_t valid(const std::vector<int32_t>& targets) {
        return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target != -1; });
    }
    const Json& expected_;
    const size_t length_, size_, first_;
    Batch batch_;
    size_t step_ = 0;
};

class HfGpt2Test : public ::testing::Test {
  protected:
    Config config(const std::vector<std::string>& settings = {}) const {
        const auto number = [&](const char* key) { return expected_[key].dump(); };
        const std::string common = R"("lr": )" + number("lr") + R"(, "beta1": )" + number("beta1") +
                                   R"(, "beta2": )" + number("beta2") + R"(, "epsilon": )" +
                                   number("epsilon");
        return parse_config(
            R"({"model": {"preset": "gpt2", "model_dim": 16, "vocab_size": 67,
                          "layers": {"count": 2, "each": {"attention": {"heads": 2}}}},
                "batch": {"sequence_length": 16, "microbatch_tokens": 32, "tokens_per_step": 32},
                "data": {"document_mask": false}, "schedule": {"steps": 10, "decay": "constant"},
                "optimizers": {"groups": [{"params": ["*.weight"], "weight_decay": )" +
                number("weight_decay") + ", " + common + R"(}, {"params": ["*"], )" + common + R"(}]},
                "precision": "f32", "device": "cpu", "threads": 1})",
            "test", settings);
    }
    ParameterTable table() const { return parameters_of(config().model, 16); }
    std::vector<std::vector<float>> weights(const std::string& folder = kFolder) const {
        return read_hf_weights(folder, table(), config().model);
    }
    // Copy of the fixture with tensors and config modified by `change`.
    std::string changed(const std::function<void(std::vector<NamedTensor>&, Json&)>& change) const {
        std::vector<NamedTensor> tensors = read_safetensors(kFolder + "/model.safetensors");
        Json json = Json::parse(read_text(kFolder + "/config.json"));
        change(tensors, json);
        dir_.write("config.json", json.dump());
        write_safetensors(dir_.file("model.safetensors"), tensors);
        return dir_.path();
    }
    std::string config_with(const char* key, const Json& value) const {
        return changed([&](auto&, Json& json) { json[key] = value; });
    }

    void expect_ten_steps(StepRunner& runner, Batches& batches) const {
        runner.state().initialize(1);
        runner.state().assign(weights());
        for (size_t step = 0; step < 10; ++step) {
            runner.enqueue(static_cast<int64_t>(step), batches);
            const StepResult result = runner.collect();
            EXPECT_NEAR(result.loss, expected_["losses"][step].get<double>(), 1e-5 * result.loss) << step;
            EXPECT_NEAR(result.grad_norm, expected_["grad_norms"][step].get<double>(),
                        1e-4 * result.grad_norm)
                << step;
        }
        for (const Parameter& p : runner.state().model().table().all()) {
            std::vector<float> actual(static_cast<size_t>(p.numel()));
            runner.state().read_master(p, actual.data());
            const HfName name = hf_name(p);
            if (!expected_["after"].contains(name.name)) continue;
            const Json& values = expected_["after"][name.name];
            const size_t rows = name.transposed ? static_cast<size_t>(p.shape[1]) : 1;  // in the HF shape
            const size_t cols = values.size() / rows;
            for (size_t i = 0; i < values.size(); ++i) {
                const double here = actual[i % cols * rows + i / cols];
                ASSERT_NEAR(here, values[i].get<double>(), 2e-6) << name.name << " at " << i;
            }
        }
    }

    const Json expected_ = Json::parse(read_text(kFolder + "/expected.json"));
    const TempDir dir_;
};

NamedTensor& tensor_of(std::vector<NamedTensor>& tensors, const std::string& name) {
    for (NamedTensor& tensor : tensors) {
        if (tensor.name == name) return tensor;
    }
    throw std::out_of_range(name);
}

// Expected values: float64 computation from the same float32 weights. A logit is a sum of some hundred products of
// size 1 after two layers. Each rounding errs by 6e-8, so 1e-5 is ten times the accumulated error. AdamW divides by
// the root of the squared gradient, so the relative error of a step is the gradient's, about 1e-5. Ten steps of at
// most lr give 3e-7; 2e-6 leaves room for elements whose gradient nearly cancels.
TEST_F(HfGpt2Test, TenStepsOfAdamwAgreeWithPyTorch) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    StepRunner runner(config(), runtime);
    Batches batches(expected_);
    expect_ten_steps(runner, batches);
}

// Two ranks import shards of the same weights. Sums over ranks add one rounding.
TEST_F(HfGpt2Test, TwoRanksAgreeWithPyTorch) {
    const Config c = config({"parallel.strategy=zero1", "batch.microbatch_tokens=16"});
    run_ranks(2, [&](World& world) {
        const Ranks ranks = resolve_ranks(c, world);
        Runtime runtime(runtime_options(c, ranks));
        StepRunner runner(c, runtime, ranks);
        Batches batches(expected_, static_cast<size_t>(world.rank()), 2);
        expect_ten_steps(runner, batches);
    });
}

TEST_F(HfGpt2Test, LogitsAgreeWithPyTorch) {
    const Config c = config();
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    StepRunner runner(c, runtime);
    runner.state().assign(weights());
    Transformer& model = runner.state().model();
    Batches batches(expected_);
    model.put_batch(batches.next());
    model.forward(false);
    for (int64_t row = 0; row < 32; ++row) {
        const Tensor logits = model.logits_of(row);
        std::vector<float> values(static_cast<size_t>(logits.numel()));
        runtime.device().copy(values.data(), logits.data, logits.bytes(), runtime.compute());
        runtime.synchronize();
        for (size_t i = 0; i < 67; ++i) {
            const auto expected = expected_["logits"][static_cast<size_t>(row) * 67 + i].get<double>();
            ASSERT_NEAR(values[i], expected, 1e-5) << row << " " << i;
        }
    }
}

// Names, shapes and bits are unchanged by import and export.
TEST_F(HfGpt2Test, ExportEqualsImportBitwise) {
    const auto values = weights();
    const ReadMaster read = [&](const Parameter& p, float* host) {
        std::memcpy(host, values[static_cast<size_t>(p.id)].data(),
                    static_cast<size_t>(p.numel()) * sizeof(float));
    };
    const auto there = read_safetensors(kFolder + "/model.safetensors");
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::string folder = dir_.file(std::string(name_of(dtype)));
        write_hf_gpt2(folder, config().model, table(), read, {.dtype = dtype, .separator = 66});
        auto here = read_safetensors(folder + "/model.safetensors");
        ASSERT_EQ(here.size(), there.size());
        for (const NamedTensor& tensor : there) {
            NamedTensor& other = tensor_of(here, tensor.name);
            EXPECT_EQ(other.shape, tensor.shape) << tensor.name;
            ASSERT_EQ(other.dtype, dtype);
            if (dtype == DType::f32) {
                EXPECT_EQ(other.bytes, tensor.bytes) << tensor.name;
                continue;
            }
            const auto* exact = reinterpret_cast<const float*>(tensor.bytes.data());
            const auto* rounded = reinterpret_cast<const Bf16*>(other.bytes.data());
            for (size_t i = 0; i < other.bytes.size() / 2; ++i)
                ASSERT_EQ(rounded[i].bits, Bf16(exact[i]).bits);
        }
        const auto again = weights(folder);
        const ReadMaster read_again = [&](const Parameter& p, float* host) {
            std::memcpy(host, again[static_cast<size_t>(p.id)].data(),
                        static_cast<size_t>(p.numel()) * sizeof(float));
        };
        write_hf_gpt2(folder + "2", config().model, table(), read_again, {.dtype = dtype, .separator = 66});
        EXPECT_EQ(read_text(folder + "2/model.safetensors"), read_text(folder + "/model.safetensors"));
        EXPECT_EQ(read_hf_config(folder).num_positions, 16);
        expect_hf_fits(folder, config().model, 16);
    }
    expect_error(ExitCode::usage, {"f32 exists"},
                 [&] { write_hf_gpt2(dir_.file("f32"), config().model, table(), read, {}); });
}

TEST_F(HfGpt2Test, ReadsOtherLayouts) {
    const auto values = weights();
    // Variants: names without prefix, causal masks stored, tied head stored twice.
    const std::string bare = changed([](std::vector<NamedTensor>& tensors, Json& json) {
        NamedTensor head = tensor_of(tensors, "transformer.wte.weight");
        for (NamedTensor& tensor : tensors)
            tensor.name = tensor.name.substr(std::string("transformer.").size());
        head.name = "lm_head.weight";
        tensors.push_back(head);
        tensors.push_back({"h.0.attn.bias", DType::f32, {1, 1, 2, 2}, std::vector<char>(16)});
        json["activation_function"] = "gelu_pytorch_tanh";
        json["n_inner"] = 64;
    });
    EXPECT_EQ(weights(bare), values);
    expect_hf_fits(bare, config().model, 16);
    // A shorter sequence uses the first positions.
    const ParameterTable shorter = parameters_of(config().model, 5);
    const auto cut = read_hf_weights(kFolder, shorter, config().model);
    const auto position = static_cast<size_t>(shorter.find("position.weight").id);
    EXPECT_EQ(cut[position], std::vector<float>(values[position].begin(), values[position].begin() + 5 * 16));
    // An untied head.
    const std::string untied = changed([](std::vector<NamedTensor>& tensors, Json& json) {
        NamedTensor head = tensor_of(tensors, "transformer.wte.weight");
        head.name = "lm_head.weight";
        head.bytes[5] = 7;
        tensors.push_back(head);
        json["tie_word_embeddings"] = false;
    });
    const Config c = config({"model.head.tied_to="});
    expect_hf_fits(untied, c.model, 16);
    const ParameterTable table = parameters_of(c.model, 16);
    EXPECT_EQ(
        read_hf_weights(untied, table, c.model)[static_cast<size_t>(table.find("head.weight").id)].size(),
        128u * 16);
}

// Both forms of GELU and any epsilon are read, and written back.
TEST_F(HfGpt2Test, ReadsActivationAndEpsilon) {
    const std::string folder = changed([](auto&, Json& json) {
        json["activation_function"] = "gelu";
        json["layer_norm_epsilon"] = 1e-6;
    });
    const ModelConfig model = read_hf_config(folder).model;
    EXPECT_EQ(model.parts.layers.each.mlp->activation, Activation::gelu_erf);
    EXPECT_EQ(model.parts.norms.epsilon, 1e-6);
    const auto values = weights();
    const ReadMaster read = [&](const Parameter& p, float* host) {
        std::copy(values[static_cast<size_t>(p.id)].begin(), values[static_cast<size_t>(p.id)].end(), host);
    };
    write_hf_gpt2(dir_.file("written"), model, table(), read, {});
    const Json written = Json::parse(read_text(dir_.file("written/config.json")));
    EXPECT_EQ(written["activation_function"], "gelu");
    EXPECT_EQ(written["layer_norm_epsilon"], 1e-6);
    expect_error(
        ExitCode::usage,
        {R"(model.layers.each.mlp.activation is "gelu_tanh", expected "gelu_erf")", "model.norms.epsilon"},
        [&] { expect_hf_fits(folder, config().model, 16); });
}

// Weights in two files with an index are the weights of one file.
TEST_F(HfGpt2Test, ReadsShardedWeights) {
    const auto values = weights();
    const std::string folder = changed([](auto&, Json&) {});
    std::vector<NamedTensor> all = read_safetensors(folder + "/model.safetensors"), parts[2];
    Json index = {{"weight_map", Json::object()}};
    const char* const names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < all.size(); ++i) {
        index["weight_map"][all[i].name] = names[i % 2];
        parts[i % 2].push_back(all[i]);
    }
    std::filesystem::remove(folder + "/model.safetensors");
    for (size_t i = 0; i < 2; ++i) write_safetensors(dir_.file(names[i]), parts[i]);
    dir_.write("model.safetensors.index.json", index.dump());
    EXPECT_EQ(weights(folder), values);
    const auto refused = [&](const Json& json, std::initializer_list<std::string> texts) {
        dir_.write("model.safetensors.index.json", json.dump());
        expect_error(ExitCode::data, texts, [&] { weights(folder); });
    };
    Json wrong = index;
    wrong["weight_map"][all[0].name] = names[1];
    refused(wrong, {std::string(names[1]) + " has no tensor " + all[0].name});
    wrong["weight_map"][all[0].name] = "../x.safetensors";
    refused(wrong, {"index.json", "a file name without folders"});
    refused(Json::array(), {"no object \"weight_map\""});
    std::filesystem::remove(dir_.file(names[1]));
    refused(index, {names[1]});
}

TEST_F(HfGpt2Test, RejectsExportOfNonFiniteWeights) {
    const Config c = config();
    const ParameterTable table = parameters_of(c.model, 16);
    for (const float bad : {NAN, INFINITY}) {
        const auto read = [&](const Parameter& p, float* values) {
            std::fill(values, values + p.numel(), p.name == "final_norm.gain" ? bad : 0.5f);
        };
        const std::string folder = dir_.file("exported");
        expect_error(ExitCode::diverged, {"final_norm.gain has ", " at number 0"},
                     [&] { write_hf_gpt2(folder, c.model, table, read, {}); });
        EXPECT_FALSE(std::filesystem::exists(folder));
    }
}

TEST_F(HfGpt2Test, RejectsUnsupportedConfigs) {
    const auto expect = [&](const char* key, const Json& value, std::initializer_list<std::string> parts) {
        expect_error(ExitCode::data, parts, [&] { read_hf_config(config_with(key, value)); });
    };
    expect("model_type", "llama", {"config.json: model_type: expected \"gpt2\", found \"llama\""});
    expect("model_type", nullptr, {"model_type: expected \"gpt2\", found nothing"});
    expect("activation_function", "relu", {"activation_function: expected \"gelu_new\"", "found \"relu\""});
    expect("scale_attn_by_inverse_layer_idx", true, {"scale_attn_by_inverse_layer_idx: expected false"});
    expect("layer_norm_epsilon", 0, {"layer_norm_epsilon: expected a number from 1e-20 to 1, found 0"});
    expect("layer_norm_epsilon", "1e-6", {"layer_norm_epsilon: expected a number", "found \"1e-6\""});
    expect("n_layer", "2", {"n_layer: expected a whole number from 1 to 1000, found \"2\""});
    expect("n_layer", 1e300, {"n_layer: expected a whole number"});
    expect("n_embd", 17, {"n_embd: expected a multiple of n_head, 2, found 17"});
    expect("n_inner", 50, {"n_inner: expected null or a multiple of n_embd, 16, found 50"});
    expect("vocab_size", 70000, {"vocab_size: expected a whole number from 2 to 65536, found 70000"});
    dir_.write("config.json", "{");
    expect_error(ExitCode::data, {"config.json: not valid JSON"}, [&] { read_hf_config(dir_.path()); });
    expect_error(ExitCode::data, {"absent/config.json: cannot be read"},
                 [&] { read_hf_config(dir_.file("absent")); });
    expect_error(ExitCode::usage,
                 {"model.layers.count is 3, expected 2; batch.sequence_length is 32, expected at most 16"},
                 [&] { expect_hf_fits(kFolder, config({"model.layers.count=3"}).model, 32); });
    expect_error(ExitCode::usage,
                 {"model.layers.each.attention.qk_norm is true, expected false",
                  R"(model.layers.each.attention.window is "4", expected "0")"},
                 [&] {
                     const Config c = config({"model.layers.each.attention.qk_norm=true",
                                              "model.layers.each.attention.window=4"});
                     write_hf_gpt2(dir_.file("x"), c.model, table(), {}, {});
                 });
}

TEST_F(HfGpt2Test, RejectsMismatchedTensors) {
    const auto expect = [&](std::initializer_list<std::string> parts,
                            const std::function<void(std::vector<NamedTensor>&)>& change) {
        const std::string folder = changed([&](auto& tensors, Json&) { change(tensors); });
        expect_error(ExitCode::data, parts, [&] { weights(folder); });
    };
    const std::string fc = "transformer.h.1.mlp.c_fc.weight";
    expect({"missing tensor " + fc, "unknown tensor transformer.h.2.mlp.c_fc.weight"},
           [&](auto& tensors) { tensor_of(tensors, fc).name = "transformer.h.2.mlp.c_fc.weight"; });
    expect({fc + " is f32 [64,16], expected f32 [16,64]"}, [&](auto& tensors) {  // a Linear, not a Conv1D
        tensor_of(tensors, fc).shape = {64, 16};
    });
    expect({fc + " is i32 [16,64], expected f32 [16,64] or bf16"},
           [&](auto& tensors) { tensor_of(tensors, fc).dtype = DType::i32; });
    expect({"wte.weight is f32 [66,16], expected f32 [67,16]"}, [&](auto& tensors) {
        NamedTensor& wte = tensor_of(tensors, "transformer.wte.weight");
        wte.shape[0] = 66;
        wte.bytes.resize(66 * 16 * 4);
    });
    expect_error(ExitCode::data, {"model.safetensors", "header"}, [&] {
        changed([](auto&, Json&) {});
        dir_.write("model.safetensors", std::string("\xfe\xff\xff\xff\xff\xff\xff\x7f{}", 10));
        weights(dir_.path());
    });
    expect({"lm_head.weight is not wte.weight"}, [&](auto& tensors) {
        NamedTensor head = tensor_of(tensors, "transformer.wte.weight");
        head.name = "lm_head.weight";
        head.bytes[100] ^= 1;
        tensors.push_back(head);
    });
    for (const float bad : {NAN, INFINITY}) {
        expect({fc + " has ", " at number 3"}, [&](auto& tensors) {
            std::memcpy(tensor_of(tensors, fc).bytes.data() + 12, &bad, sizeof bad);
        });
    }
    // A map by name would silently drop one tensor.
    expect({"two tensors are transformer.wte.weight: with and without the prefix"}, [&](auto& tensors) {
        NamedTensor wte = tensor_of(tensors, "transformer.wte.weight");
        wte.name = "wte.weight";
        tensors.push_back(wte);
    });
    expect_error(ExitCode::data, {"absent/model.safetensors: not there", "save_pretrained"},
                 [&] { weights(dir_.file("absent")); });
}

}  // namespace speedrun::testing::hf_gpt2_test
