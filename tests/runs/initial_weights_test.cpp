// model.init_from: runs that start from a checkpoint or from final weights, on any mesh.
// Covers: train/runlog/run_origin.cpp train/engine/weight_source.cpp
#include "train/engine/initial_weights.h"

#include "data/xxh128.h"
#include "tests/runs/rank_run_fixture.h"
#include "train/checkpoint/weights.h"

namespace speedrun::testing::initial_weights_test {

// One layer of two heads: tensor parallelism of 2 cuts heads, MLP and vocabulary.
const Settings kRun = {"model.layers.count=1",
                       "batch.tokens_per_step=256",
                       "batch.microbatch_tokens=64",
                       "schedule.steps=6",
                       "checkpoint.every=3",
                       "eval.every=0",
                       "checkpoint.keep=100",
                       "threads=1",
                       "data.val_tokens=300",
                       "batch.sequence_length=32",
                       "device=cpu"};

class InitialWeightsTest : public RankRunFixture {
  protected:
    Config make(const Settings& more = {}) const { return config(kRun, more); }
    Config from(const std::string& folder, const Settings& more = {}) const {
        Config c = make(more);
        c.model.init_from = folder;
        return c;
    }
    void expect_refused(ExitCode code, const std::vector<std::string>& parts, const Config& c,
                        int ranks = 2) {
        run_ranks(ranks, [&](World& world) {
            expect_error(code, parts, [&] { read_initial_weights(world, c, nullptr); });
        });
    }
    static std::vector<float> floats_in(const std::string& folder, const std::string& name) {
        CheckpointReader reader(folder);
        reader.index();
        for (const CheckpointTensor& tensor : reader.info().tensors) {
            if (tensor.name != name) continue;
            if (tensor.dtype == DType::f32) return tensor_in(folder, name);
            std::vector<Bf16> values(static_cast<size_t>(tensor.numel()));
            reader.read(name, Box::of({0, tensor.numel()}), values.data());
            return {values.begin(), values.end()};
        }
        return {};
    }
    // Masters must be equal, in any type.
    static void expect_same_weights(const std::string& a, const std::string& b) {
        int compared = 0;
        const CheckpointReader one(a);
        for (const CheckpointTensor& tensor : one.info().tensors) {
            if (!tensor.name.starts_with("master/")) continue;
            EXPECT_EQ(floats_in(a, tensor.name) == floats_in(b, tensor.name), true)
                << tensor.name << " of " << a << " and " << b;
            ++compared;
        }
        EXPECT_GT(compared, 5);
    }
    Json summary(const std::string& name) const {
        return Json::parse(bytes_of(path(name) + "/summary.json"));
    }
};

TEST_F(InitialWeightsTest, WeightsAreEqualOnAnyMesh) {
    EXPECT_EQ(train(make({"parallel.strategy=zero3"}), 2, "source"), "");
    const std::string weights = checkpoint("source", 3);
    const Settings untrained = {"schedule.steps=0"},
                   other = {"seed=9", "schedule.steps=4", "checkpoint.every=0"};
    EXPECT_EQ(train(from(weights, other), 1, "one"), "");
    std::vector<std::pair<int, Settings>> meshes = {{1, {}},
                                                    {2, {by("ddp")}},
                                                    {2, {by("zero1")}},
                                                    {2, {by("zero2")}},
                                                    {2, {by("zero3")}},
                                                    {2, {"parallel.tensor=2"}},
                                                    {2, {"parallel.context=2"}},
                                                    {4, {"parallel.tensor=2", by("zero3")}}};
    if (kSanitized) meshes = {{2, {"parallel.tensor=2"}}};
    int number = 0;
    for (const auto& [ranks, mesh] : meshes) {
        SCOPED_TRACE(mesh.empty() ? "one rank" : mesh.front());
        const std::string start = fmt::format("start{}", number), run = fmt::format("run{}", number);
        ++number;
        EXPECT_EQ(train(from(weights, together({mesh, untrained})), ranks, start), "");
        expect_same_weights(weights, checkpoint(start, 0));
        EXPECT_EQ(train(from(weights, together({mesh, other})), ranks, run), "");
        expect_near(losses(run), losses("one"), kRanksTolerance, run);
    }
}

TEST_F(InitialWeightsTest, RunFolderMeansItsLastWeights) {
    EXPECT_EQ(train(make(), 1, "source"), "");
    const auto origin = [&](const std::string& folder) {
        RunOrigin found;
        run_ranks(1,
                  [&](World& world) { found = read_initial_weights(world, from(folder), nullptr).origin; });
        return std::pair(found.path, found.step);
    };
    EXPECT_EQ(origin(path("source")), std::pair(checkpoint("source", 6), int64_t{6}));
    EXPECT_EQ(origin(path("source") + "/"),
              std::pair(path("source") + "/checkpoints/step-00000006", int64_t{6}));
    EXPECT_EQ(origin(checkpoint("source", 3)), std::pair(checkpoint("source", 3), int64_t{3}));
    fs::remove_all(checkpoint("source", 6));
    fs::remove(path("source") + "/summary.json");
    EXPECT_EQ(origin(path("source")), std::pair(checkpoint("source", 3), int64_t{3}));
    fs::remove_all(checkpoint("source", 3));
    expect_refused(ExitCode::usage, {"has no checkpoint and has not ended"}, from(path("source")), 1);
}

// Final weights are the f32 masters; a run with bf16 weights rounds them.
TEST_F(InitialWeightsTest, ConvertsTypes) {
    const Settings bf16 = {"precision=bf16",
                           R"(optimizers.groups=[{"params": ["*"], "lr": 0.01, "weights_dtype": "bf16"}])"};
    EXPECT_EQ(train(make(bf16), 1, "bf16"), "");
    EXPECT_EQ(train(from(path("bf16"), {"schedule.steps=0"}), 1, "f32"), "");
    expect_same_weights(checkpoint("bf16", 6), checkpoint("f32", 0));
    EXPECT_EQ(train(from(path("f32"), together({bf16, {"schedule.steps=0"}})), 1, "back"), "");
    expect_same_weights(checkpoint("bf16", 6), checkpoint("back", 0));
}

TEST_F(InitialWeightsTest, NamesWhatDoesNotMatch) {
    EXPECT_EQ(train(make(), 1, "source"), "");
    const std::string weights = checkpoint("source", 6);
    expect_refused(ExitCode::usage,
                   {weights + " does not fit the config's model: ",
                    "embed.weight is [64,32] there, [64,64] here", "model.model_dim: 32 there, 64 here"},
                   from(weights, {"model.model_dim=64"}));
    expect_refused(ExitCode::usage, {"blocks.1.", " is not there", "model.layers.count: 1 there, 2 here"},
                   from(weights, {"model.layers.count=2"}));
    expect_refused(ExitCode::usage, {"blocks.0.mlp.", " is there and not here"},
                   from(weights, {"model.layers.each.mlp=null"}));
    expect_refused(ExitCode::usage, {"model.init_from ", "nowhere: not a run folder"},
                   from((folder_ / "nowhere").string()));
    // Equal shapes, another function: a warning.
    run_ranks(1, [&](World& world) {
        const InitialWeights read =
            read_initial_weights(world, from(weights, {"model.head.softcap=30"}), nullptr);
        ASSERT_EQ(read.warnings.size(), 1u);
        EXPECT_THAT(read.warnings.front(), HasSubstr("model.head.softcap: 15.0 there, 30"));
    });
    std::fstream file(weights + "/rank-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('x');
    file.close();
    expect_refused(ExitCode::data, {"rank-00000.safetensors: XXH128 is ", "damaged is tensor"},
                   from(weights));
}

TEST_F(InitialWeightsTest, RefusesAnotherTokenizer) {
    EXPECT_EQ(train(make(), 1, "source"), "");
    DataIdentity here;
    here.train = identify_split({(folder_ / "train.bin").string()});
    here.val = here.train;
    DataIdentity other = here;
    other.train.separator = 3;
    std::ofstream(path("source") + "/data.json") << data_identity_to_json(here);
    // The fixture writes neither config.json nor final weights.
    std::ofstream(path("source") + "/config.json") << config_to_json(make());
    fs::create_directories(path("source") + "/checkpoints/final");
    const Config c = from(path("source") + "/checkpoints/final");
    Runtime runtime(runtime_options(c));
    TrainState state(c, runtime, kAlone);
    state.initialize(1);
    save_weights(c.model.init_from, state.table(),
                 [&](const Parameter& p, float* host) { state.read_master(p, host); });
    run_ranks(1, [&](World& world) {
        EXPECT_NO_THROW(read_initial_weights(world, c, &here));
        expect_error(ExitCode::data,
                     {"data.json: the weights are for other tokens: bytes (vocab_size 32, separator 31",
                      "separator 3, vocabulary none) in data.train"},
                     [&] { read_initial_weights(world, c, &other); });
    });
}

// summary.json and checkpoints name the weights, also after a resume.
TEST_F(InitialWeightsTest, OriginIsStored) {
    EXPECT_EQ(train(make(), 1, "source"), "");
    EXPECT_FALSE(summary("source").contains("origin"));
    EXPECT_EQ(train(from(path("source")), 2, "run"), "");
    const Json origin = summary("run").at("origin");
    EXPECT_EQ(origin.at("kind"), "weights");
    EXPECT_EQ(origin.at("path"), checkpoint("source", 6));
    EXPECT_EQ(origin.at("step"), 6);
    EXPECT_EQ(origin.at("xxh128"), xxh128_file(checkpoint("source", 6) + "/XXH128SUMS"));
    EXPECT_EQ(Json::parse(CheckpointReader(checkpoint("run", 3)).info().origin), origin);
}

}  // namespace speedrun::testing::initial_weights_test
