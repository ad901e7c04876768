// AdamW's moments in bf16 with everything else in f32: memory, and checkpoints of mixed dtypes.

#include "data/xxh128.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"
#include "tests/train/optimizer_harness.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"

namespace speedrun::testing::bf16_moments_test {

OptimizerGroupConfig adamw(DType moments) {
    OptimizerGroupConfig group;
    group.params = {"*"};
    group.adamw.moments_dtype = moments;
    return group;
}

class Bf16MomentsTest : public ::testing::Test {
  protected:
    OptimizerHarness harness(DType moments) {
        fixture_.group = adamw(moments);
        return muon_harness(fixture_, DType::f32);
    }
    OptimizerFixture fixture_ = load_optimizer_fixture("muon");  // source of matrices and gradients
};

TEST_F(Bf16MomentsTest, TakeHalfTheMemory) {
    OptimizerHarness f32 = harness(DType::f32), bf16 = harness(DType::bf16);
    int64_t numbers = 0;
    for (const auto& [name, entry] : fixture_.parameters) numbers += f32.parameter(name).numel();
    EXPECT_EQ(f32.optimizer_bytes(), numbers * 2 * 4);
    EXPECT_EQ(bf16.optimizer_bytes(), numbers * 2 * 2);
}

// A bf16 moment has a relative error of at most 1/512, and ten steps add little to it: less than 1% of the update.
// The difference is nonzero, so the bf16 path is used.
TEST_F(Bf16MomentsTest, TenStepsGoNearlyTheSameWay) {
    OptimizerHarness f32 = harness(DType::f32), bf16 = harness(DType::bf16);
    for (const auto& [name, entry] : fixture_.parameters) {
        for (int step = 0; step < 10; ++step) {
            f32.step(name, entry.gradients.at(step), step, 1);
            bf16.step(name, entry.gradients.at(step), step, 1);
        }
        const double way = norm_of(difference_of(f32.value(name), entry.start));
        const double apart = norm_of(difference_of(bf16.value(name), f32.value(name)));
        EXPECT_LT(apart, 0.01 * way) << name;
        EXPECT_GT(apart, 0) << name;
    }
}

TEST_F(Bf16MomentsTest, ResetForgets) {
    OptimizerHarness used = harness(DType::bf16), fresh = harness(DType::bf16);
    for (const auto& [name, entry] : fixture_.parameters) used.step(name, entry.gradients[0], 0, 1);
    used.reset();
    for (const auto& [name, entry] : fixture_.parameters) {
        used.set(name, entry.start);
        used.step(name, entry.gradients[1], 0, 1);
        fresh.step(name, entry.gradients[1], 0, 1);
        EXPECT_EQ(used.value(name), fresh.value(name)) << name;
    }
}

// ---- checkpoints: an f32 master and a bf16 moment, written by two ranks in ranges of odd sizes

class Bf16CheckpointTest : public ::testing::Test {
  protected:
    static std::vector<CheckpointTensor> tensors() {
        return {{"master/a", {3, 7}}, {"adamw_m/a", {3, 7}, DType::bf16}, {"adamw_v/a", {3, 7}, DType::bf16}};
    }
    static uint16_t bits(int64_t i) { return static_cast<uint16_t>(0x3f80 + 3 * i); }

    void save() {
        CheckpointInfo info;
        info.step = 1;
        info.ranks = 2;
        info.config = "{}";
        info.tensors = tensors();
        std::vector<float> masters(21);
        std::vector<uint16_t> moments(21);
        for (int64_t i = 0; i < 21; ++i) {
            masters[i] = static_cast<float>(i);
            moments[i] = bits(i);
        }
        for (const int64_t rank : {0, 1}) {
            const Box box = rank == 0 ? Box::of({0, 9}) : Box::of({9, 12});
            std::vector<StatePiece> pieces;
            for (const CheckpointTensor& tensor : info.tensors)
                pieces.push_back({tensor, {box}, Tensor(nullptr, tensor.dtype, {box.count()})});
            RankFileWriter writer(real_file_system(), run_, {.step = 1, .rank = rank}, pieces);
            while (const auto chunk = writer.next()) {
                const int64_t at = box.begin + chunk->elements.begin;
                if (pieces[chunk->piece].tensor.dtype == DType::f32)
                    writer.write(masters.data() + at);
                else
                    writer.write(moments.data() + at);
            }
            info.files.push_back(writer.finish());
        }
        commit_checkpoint(real_file_system(), run_, info, 2);
    }

    const TempDir dir_;
    const std::string run_ = dir_.path(), folder_ = run_ + "/checkpoints/step-00000001";
};

TEST_F(Bf16CheckpointTest, EveryTensorComesBackInItsType) {
    save();
    CheckpointReader reader(folder_);
    EXPECT_EQ(reader.info().tensors, tensors());
    for (const CheckpointFile& file : reader.info().files) reader.verify_file(file);
    reader.index();
    reader.expect_tensors(tensors());
    std::vector<float> masters(21);
    reader.read("master/a", Box::of({0, 21}), masters.data());
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(masters[i], static_cast<float>(i));
    for (const char* name : {"adamw_m/a", "adamw_v/a"}) {
        std::vector<uint16_t> moments(21);
        reader.read(name, Box::of({0, 21}), moments.data());
        for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(moments[i], bits(i)) << name;
        std::vector<uint16_t> some(6);
        reader.read(name, {.begin = 8, .rows = 2, .columns = 3, .stride = 7}, some.data());  // both ranks
        const int64_t at[] = {8, 9, 10, 15, 16, 17};
        for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(some[i], bits(at[i])) << name;
    }
}

// Dtypes are read from the file. A dtype that differs from the model's or from checkpoint.json is an error.
TEST_F(Bf16CheckpointTest, OtherTypesAreRefused) {
    save();
    CheckpointReader reader(folder_);
    reader.index();
    std::vector<CheckpointTensor> expected = tensors();
    expected[1].dtype = DType::f32;
    EXPECT_THAT(error_of(ExitCode::data, [&] { reader.expect_tensors(expected); }),
                HasSubstr("adamw_m/a is bf16, expected f32"));

    CheckpointInfo info = read_checkpoint_info(folder_);
    info.tensors[2].dtype = DType::f32;
    write_checkpoint_info(real_file_system(), folder_, info);
    CheckpointReader other(folder_);
    const std::string error = error_of(ExitCode::data, [&] { other.index(); });
    EXPECT_THAT(
        error,
        HasSubstr("adamw_v/a[0:9] has 18 bytes of bf16; expected 9 numbers (f32) of tensor adamw_v/a [3,7]"));
}

TEST_F(Bf16CheckpointTest, UnknownTypesAreRefused) {
    save();
    const std::string path = folder_ + "/checkpoint.json", sums_path = folder_ + "/XXH128SUMS";
    std::string json = read_text(path), all = read_text(sums_path);
    EXPECT_EQ(json.find("\"f32\""), std::string::npos) << "said of no tensor that has always been f32";
    json.replace(json.find("\"bf16\""), 6, "\"f16\"");
    std::ofstream(path) << json;
    Xxh128 hash;
    hash.update(json.data(), json.size());
    all.replace(all.find("checkpoint.json") - 34, 32, hash.hex());
    std::ofstream(sums_path) << all;
    const std::string error = error_of(ExitCode::data, [&] { CheckpointReader reader(folder_); });
    EXPECT_THAT(error, HasSubstr("expected a dtype f32 or bf16, got \"f16\""));
}

// Tensors saved by a run with such a group, from its parameter table.
TEST_F(Bf16CheckpointTest, TensorsOfARun) {
    const ModelConfig model = tiny_model();
    OptimizersConfig optimizers;
    optimizers.groups = {adamw(DType::bf16)};
    for (const CheckpointTensor& tensor : checkpoint_tensors(parameters_of(model, 8), optimizers))
        EXPECT_EQ(tensor.dtype, tensor.name.starts_with("master/") ? DType::f32 : DType::bf16) << tensor.name;
    optimizers.groups = {adamw(DType::f32)};
    for (const CheckpointTensor& tensor : checkpoint_tensors(parameters_of(model, 8), optimizers))
        EXPECT_EQ(tensor.dtype, DType::f32) << tensor.name;
}

}  // namespace speedrun::testing::bf16_moments_test
