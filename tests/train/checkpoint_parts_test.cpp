// Checkpoints written by any tensor and shard cut contain the same tensors as one rank's and load under any other
// cut.
// Covers: train/sharding/sharded_state.cpp train/optim/state.cpp
#include <algorithm>

#include "tests/each_element.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"
#include "tests/train/cut_table.h"
#include "train/checkpoint/checkpointer.h"
#include "train/checkpoint/safetensors.h"

namespace speedrun::testing::checkpoint_parts_test {

struct Cut {
    int parts = 1, shards = 1;
};

OptimizersConfig adamw() {
    OptimizersConfig config;
    config.groups.resize(1);
    config.groups[0].type = OptimizerKind::adamw;
    config.groups[0].params = {"*"};
    return config;
}

BucketRules rules_of(const Cut& cut, int shard) {
    BucketRules rules;
    rules.num_shards = cut.shards;
    rules.index = shard;
    rules.target = 50;
    rules.whole_matrix = {false};
    return rules;
}

// State of one rank of the cut, in a world of size 1.
class PartState final : public RunState {
  public:
    PartState(const Cut& cut, int part, int shard)
        : table_(cut_table({.size = cut.parts, .index = part})),
          parameters_(table_, rules_of(cut, shard), runtime_),
          gradients_(table_, parameters_.layout(), runtime_),
          reducer_(ranks_, parameters_, gradients_, runtime_),
          state_(adamw(), StepOrder::forward, table_, {parameters_, gradients_, reducer_, runtime_}) {}

    const ParameterTable& table() const override { return table_; }
    ShardedState& state() override { return state_; }
    void snapshot(const StateCopies& /*copies*/) override {}
    void await_snapshot() override {}
    double idle_ms() override { return 0; }
    void finish_load(int64_t /*steps*/) override {}
    void refresh_copies() override {}
    Runtime& runtime() { return runtime_; }

    // Calls visit(element, expected value). The value is determined by kind of state, parameter and index in the
    // whole tensor.
    template <class Visit>
    void each_number(Visit&& visit) {
        for (const Bucket& bucket : state_.layout().all()) {
            float kind = 0;
            for (const StateShard& shard : state_.shards(bucket)) {
                auto* const values = shard.values.as<float>();
                for (const Piece& piece : state_.layout().shard_pieces(bucket))
                    each_element(*piece.parameter, piece.in_parameter, [&](int64_t at, int64_t element) {
                        visit(values[piece.in_shard + at],
                              kind + static_cast<float>(piece.parameter->id * 1000 + element));
                    });
                kind += 10000;
            }
        }
    }

  private:
    Ranks ranks_;
    Runtime runtime_{{.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1}};
    ParameterTable table_;
    ParameterStore parameters_;
    GradientStore gradients_;
    Reducer reducer_;
    ShardedState state_;
};

class CheckpointPartsTest : public ::testing::Test {
  protected:
    // Every tensor rank writes its slices. Tensor rank 0 also writes the replicated tensors.
    void save(const Cut& cut) {
        CheckpointInfo info;
        info.step = 1;
        info.ranks = cut.parts * cut.shards;
        info.config = "{}";
        info.tensors = checkpoint_tensors(cut_table({}), adamw());
        for (int rank = 0; rank < info.ranks; ++rank) {
            PartState state(cut, rank % cut.parts, rank / cut.parts);
            state.each_number([](float& number, float value) { number = value; });
            EXPECT_EQ(checkpoint_tensors(state.table(), adamw()), info.tensors);
            std::vector<StatePiece> pieces;
            for (const Bucket& bucket : state.state().layout().all())
                for (StatePiece& piece : state_pieces(state.state(), bucket))
                    if (rank % cut.parts == 0 || piece_is_cut(state.table(), piece))
                        pieces.push_back(std::move(piece));
            RankFileWriter writer(real_file_system(), dir_.path(), {.step = 1, .rank = rank}, pieces);
            while (const auto chunk = writer.next())
                writer.write(pieces[chunk->piece].values.as<float>() + chunk->elements.begin);
            info.files.push_back(writer.finish());
        }
        commit_checkpoint(real_file_system(), dir_.path(), info, 2);
    }
    static bool piece_is_cut(const ParameterTable& table, const StatePiece& piece) {
        return !table.find(piece.tensor.name.substr(piece.tensor.name.find('/') + 1)).cut.all();
    }

    void expect_loads(const Cut& cut) {
        CheckpointReader reader(folder());
        for (const CheckpointFile& file : reader.info().files) reader.verify_file(file);
        reader.index();
        reader.expect_tensors(checkpoint_tensors(cut_table({}), adamw()));
        for (int rank = 0; rank < cut.parts * cut.shards; ++rank) {
            PartState state(cut, rank % cut.parts, rank / cut.parts);
            load_checkpoint(reader, state.runtime(), state);
            int64_t wrong = 0;
            state.each_number([&](float number, float value) { wrong += number != value; });
            EXPECT_EQ(wrong, 0) << "rank " << rank << " of " << cut.parts << " x " << cut.shards;
        }
    }

    std::string folder() const { return dir_.path() + "/checkpoints/" + checkpoint_name(1); }
    std::string file(int64_t rank) const { return folder() + "/" + rank_file_name(rank); }

    std::vector<std::string> names_in(int64_t rank) const {
        std::vector<std::string> names;
        for (const TensorEntry& entry : read_safetensors_entries(file(rank))) names.push_back(entry.name);
        return names;
    }
    std::string problem() const {
        CheckpointReader reader(folder());
        return error_of(ExitCode::data, [&] { reader.index(); });
    }

    const TempDir dir_;
};

TEST_F(CheckpointPartsTest, LoadsUnderAnyOtherSharding) {
    const std::vector<Cut> cuts{{1, 1}, {1, 3}, {2, 1}, {2, 2}, {3, 1}, {3, 5}, {6, 2}};
    for (const Cut& written : cuts) {
        save(written);
        for (const Cut& read : cuts) expect_loads(read);
    }
}

TEST_F(CheckpointPartsTest, NamesContainSliceRanges) {
    save({.parts = 2, .shards = 1});
    const std::vector<std::string> names = names_in(1);
    for (const char* name :
         {"master/out.weight[0:5,3:6]", "adamw_m/down.weight[0:5,6:12]", "master/up.weight[30:60]",
          "master/qkv.weight[15:30]", "master/qkv.weight[45:60]", "master/qkv.weight[75:90]",
          "adamw_v/qkv.bias[15:18]"})
        EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
    for (const char* name : {"master/norm.gain", "master/position.weight"})
        EXPECT_EQ(std::count(names.begin(), names.end(), name), 0) << name;
    save({.parts = 1, .shards = 1});
    for (const std::string& name : names_in(0)) EXPECT_EQ(name.find('['), std::string::npos) << name;
}

// Valid headers with overlapping, missing, out-of-range or unknown ranges.
TEST_F(CheckpointPartsTest, DetectsInvalidBoxes) {
    save({.parts = 2, .shards = 1});
    const std::vector<NamedTensor> good = read_safetensors(file(1));
    const auto with = [&](const std::string& name, const std::string& instead) {
        std::vector<NamedTensor> tensors = good;
        const auto found = std::find_if(tensors.begin(), tensors.end(),
                                        [&](const NamedTensor& t) { return t.name == name; });
        if (found != tensors.end()) found->name = instead;
        EXPECT_NE(found, tensors.end()) << name;
        write_safetensors(file(1), tensors);
        return problem();
    };
    const auto expect = [&](const std::string& instead, const std::string& text) {
        const std::string actual = with("master/out.weight[0:5,3:6]", instead);
        EXPECT_THAT(actual, HasSubstr(text));
    };
    expect("master/out.weight[0:5,3:6]", "accepted");
    expect("master/out.weight[0:5,2:5]",
           "tensor master/out.weight [5,6]: the files hold number 2 more than once");
    expect("master/out.weight[0:5,0:3]", "the files hold number 0 more than once");
    expect("master/out.weight[15:30]",
           "missing tensor master/out.weight [5,6]: the files hold 3 of 30 numbers");
    expect("master/out.weight[0:3,1:6]", "the files hold number 1 more than once");
    expect("master/out.weight[0:5,4:7]", "holds numbers that tensor master/out.weight [5,6] lacks");
    expect("master/out.weight[1:6,3:6]", "holds numbers that tensor master/out.weight [5,6] lacks");
    expect("master/out.weight[0:5,4:6]", "expected 10 numbers (f32) of tensor master/out.weight [5,6]");
    expect("master/qkv.bias[0:5,3:6]", "holds numbers that tensor master/qkv.bias [18] lacks");
    expect("master/out.weight[0:5,3:6", "unknown tensor master/out.weight[0:5,3:6");
}

// State of matrix optimizers has the shape of whole matrices, independent of the slice that a rank owns.
TEST_F(CheckpointPartsTest, MatrixStateHasWholeShape) {
    OptimizersConfig config = adamw();
    config.groups.insert(config.groups.begin(), OptimizerGroupConfig());
    config.groups[0].type = OptimizerKind::muon;
    config.groups[0].muon.normuon = true;
    config.groups[0].params = {"*.weight"};
    const std::vector<CheckpointTensor> whole = checkpoint_tensors(cut_table({}), config);
    const CheckpointTensor of_qkv{"normuon_v/qkv.weight", {3, 6}}, of_down{"normuon_v/down.weight", {1, 12}};
    EXPECT_EQ(std::count(whole.begin(), whole.end(), of_qkv), 1);
    EXPECT_EQ(std::count(whole.begin(), whole.end(), of_down), 1);
    for (const int parts : {2, 3})
        EXPECT_EQ(checkpoint_tensors(cut_table({.size = parts, .index = 1}), config), whole);
    config.groups[0].muon.normuon_lines = NormuonLines::rows;
    const std::vector<CheckpointTensor> by_row = checkpoint_tensors(cut_table({}), config);
    EXPECT_EQ(std::count(by_row.begin(), by_row.end(), CheckpointTensor{"normuon_v/down.weight", {1, 5}}), 1);
}

// The matrices of one parameter may differ in their number of rows.
TEST_F(CheckpointPartsTest, HeadMatrixStateHasPerMatrixShape) {
    ParameterTable table;
    table.declare(
        "qkv.weight",
        {{.dimension = Dimension::head_width, .size = 36, .stacks = {12, 12, 12}}, {Dimension::width, 6}},
        InitRule{});
    table.set_head_rows(0, {.stacks = 2, .heads = 6});
    OptimizersConfig config;
    config.groups.resize(1);
    OptimizerGroupConfig& group = config.groups[0];
    group = {};
    group.type = OptimizerKind::muon;
    group.params = {"*"};
    group.muon.normuon = true;
    group.muon.heads_per_matrix = 3;
    const auto state = [&](NormuonLines lines) {
        group.muon.normuon_lines = lines;
        return checkpoint_tensors(table, config).back();
    };
    // q and k give two 6 x 6 matrices each, v one of 12 x 6.
    EXPECT_EQ(state(NormuonLines::rows), (CheckpointTensor{"normuon_v/qkv.weight", {4 * 6 + 12}}));
    EXPECT_EQ(state(NormuonLines::columns), (CheckpointTensor{"normuon_v/qkv.weight", {5, 6}}));
}

}  // namespace speedrun::testing::checkpoint_parts_test
