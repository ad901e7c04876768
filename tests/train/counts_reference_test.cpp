// References of a track: invalid files, losses recomputed by verify, rows of the boards.
#include "train/records/counts_reference.h"
#include "tests/errors.h"

#include <nlohmann/json.hpp>

#include "data/shard.h"
#include "tests/temp_dir.h"
#include "train/records/leaderboard.h"
#include "train/records/reference_rows.h"

namespace speedrun {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string hardware(int cores, const std::string& level) {
    return Json{{"cpu", {{"model", "AMD EPYC"}, {"cores", cores}, {"isa", level}}}}.dump();
}

HardwareClass cores(int64_t count, const std::string& level) {
    HardwareClass hardware;
    hardware.cores = count;
    hardware.level = level;
    return hardware;
}

// Repository with a track, shards in data/toy and a reference.
class CountsReferenceTest : public ::testing::Test {
  protected:
    void SetUp() override {
        fs::create_directories(folder_ + "/references");
        fs::create_directories(data_);
        std::vector<uint16_t> train, val;
        for (uint32_t i = 0; i < 400; ++i) train.push_back(static_cast<uint16_t>(i * i % 11));
        for (uint32_t i = 0; i < 50; ++i) val.push_back(static_cast<uint16_t>(i * i % 7));
        write_shard(data_ + "/train_000000.bin", train);
        write_shard(data_ + "/val_000000.bin", val);
        Json shards = Json::array();
        for (const std::string split : {"train", "val"}) {
            const std::string file = split + "_000000.bin";
            shards.push_back({{"file", file},
                              {"split", split},
                              {"tokens", split == "train" ? 400 : 50},
                              {"sha256", sha256_file(data_ + "/" + file)}});
        }
        const Json track = {{"name", "toy"},
                            {"target_loss", 2},
                            {"hardware_class", "any"},
                            {"dataset", {{"prepare", "data/toy/prepare.sh"}, {"shards", shards}}},
                            {"validation", {{"tokens", 49}}},
                            {"rules",
                             {{"min_runs", 2},
                              {"max_loss_p", 0.01},
                              {"max_time_p", 0.01},
                              {"systems_only", {{"loss_margin", 0.01}, {"max_p", 0.05}}}}}};
        root_.write("records/toy/track.json", track.dump());
        track_ = read_track(folder_);
        const TrackTokens tokens = read_track_tokens(track_, data_);
        reference_ = {.path = folder_ + "/references/counts_avx2.json",
                      .track = "toy",
                      .order = 3,
                      .row_length = 16,
                      .tokens = 49,
                      .loss = measure_counts(3, tokens, 16).loss,
                      .repetitions = {0.75, 0.25, 0.5},
                      .date = "2026-11-28",
                      .git_sha = std::string(40, 'a'),
                      .hardware = hardware(2, "avx2"),
                      .data = tokens.shards,
                      .hardware_class = {}};
        write(Json::parse(reference_to_json(reference_)));
    }

    void write(const Json& json) { std::ofstream(reference_.path) << json.dump(2) << "\n"; }
    // Error message after replacing the value at `pointer`.
    std::string error_with(const std::string& pointer, const Json& value) {
        Json json = Json::parse(reference_to_json(reference_));
        json[Json::json_pointer(pointer)] = value;
        return error_of(json);
    }
    std::string error_of(const Json& json) {
        const std::string error =
            speedrun::error_of(ExitCode::data, [&] { reference_from_json(json.dump(), "r.json", track_); });
        EXPECT_EQ(error.find('\n'), std::string::npos) << error;
        return error;
    }

    TempDir root_;
    std::string folder_ = root_.file("records/toy"), data_ = root_.file("data/toy");
    Track track_;
    CountsReference reference_;
};

TEST_F(CountsReferenceTest, IsReadAsWritten) {
    const std::vector<CountsReference> read = read_references(folder_, track_);
    ASSERT_EQ(read.size(), 1u);
    EXPECT_EQ(reference_to_json(read[0]), reference_to_json(reference_));
    EXPECT_EQ(read[0].seconds(), 0.5);
    EXPECT_EQ(read[0].hardware_class.text(), "2 cores, avx2");
    EXPECT_EQ(read[0].file_name(), "counts_avx2.json");
    fs::remove_all(folder_ + "/references");
    EXPECT_TRUE(read_references(folder_, track_).empty());
}

TEST_F(CountsReferenceTest, RefusesWhatTheCommandCannotHaveWritten) {
    EXPECT_EQ(error_with("/schema", 1), "accepted");
    const std::string other(64, '0');
    const std::vector<std::tuple<std::string, Json, std::string>> cases = {
        {"/fast", true, "unknown key fast"},
        {"/schema", 2, "schema: 2, expected 1 to 1"},
        {"/name", "net", "name: \"net\", expected the form counts"},
        {"/track", "kjv", "track: kjv, the folder's is toy"},
        {"/order", 13, "order: 13, expected 1 to 12"},
        {"/row_length", 0, "row_length: 0, expected 1 to 49"},
        {"/tokens", 48, "tokens: 48, expected 49 to 49"},
        {"/loss", 0, "loss: 0, expected a number above 0"},
        {"/loss", 12.5, "loss: 12.5, expected a number above 0 and at most 11.1"},
        {"/loss", "1", "loss: \"1\", expected a number"},
        {"/seconds", 0.25, "seconds: 0.25, the median of the repetitions is 0.5"},
        {"/repetitions", Json::array(), "repetitions: [], expected a list"},
        {"/repetitions/0", -1, "repetitions: -1, expected a number above 0"},
        {"/date", "today", "date: \"today\""},
        {"/git_sha", "abc", "git_sha: \"abc\""},
        {"/hardware/cpu/cores", 0, "hardware: '0 cores, avx2', expected the cores"},
        {"/data/0/sha256", other, "no training shard of track toy"},
        {"/data/1/sha256", other, "is not validation shard 0 of track toy"},
        {"/data/0/tokens", 399, "data: train_000000.bin of track toy (400 tokens"},
        {"/data/0/kept", 1, "unknown key data: kept"}};
    for (const auto& [pointer, value, expected] : cases) {
        const std::string error = error_with(pointer, value);
        EXPECT_TRUE(error.starts_with("r.json: ")) << pointer << ": " << error;
        EXPECT_THAT(error, HasSubstr(expected)) << pointer << ": " << error;
    }
    const Json whole = Json::parse(reference_to_json(reference_));
    for (const auto& [key, value] : whole.items()) {
        Json json = whole;
        json.erase(key);
        EXPECT_EQ(error_of(json), "r.json: key " + key + " is missing");
    }
}

TEST_F(CountsReferenceTest, VerifyComputesTheLossAgainWhereTheShardsAre) {
    std::vector<ReferenceCheck> checks = verify_references(folder_);
    ASSERT_EQ(checks.size(), 1u);
    EXPECT_TRUE(checks[0].problems.empty()) << checks[0].problems[0];
    EXPECT_TRUE(checks[0].recomputed);
    CountsReference changed = reference_;
    changed.loss -= 1e-6;
    write(Json::parse(reference_to_json(changed)));
    checks = verify_references(folder_);
    ASSERT_EQ(checks[0].problems.size(), 1u);
    EXPECT_THAT(checks[0].problems[0], HasSubstr("computed again"));
    fs::remove(data_ + "/val_000000.bin");
    checks = verify_references(folder_);
    EXPECT_TRUE(checks[0].problems.empty() && !checks[0].recomputed);
}

TEST_F(CountsReferenceTest, MissingShardIsRefusedWithTheCommandThatMakesIt) {
    fs::remove(data_ + "/val_000000.bin");
    expect_error(ExitCode::data, {"val_000000.bin: no such shard; prepare track toy: data/toy/prepare.sh /"},
                 [&] { read_track_tokens(track_, data_); });
}

TEST_F(CountsReferenceTest, BoardShowsTheReferenceOfItsHardwareOrTheNearest) {
    CountsReference many = reference_, few = reference_;
    few.hardware_class = cores(2, "avx2");
    many.hardware = hardware(64, "amx_bf16");
    many.hardware_class = cores(64, "amx_bf16");
    many.path = "x/counts_amx_bf16.json";
    const std::vector<CountsReference> all = {few, many};
    const auto chosen = [&](const HardwareClass& board) {
        std::string names;
        for (const CountsReference& r : references_of(board, all)) names += r.hardware_class.text() + ";";
        return names;
    };
    EXPECT_EQ(chosen(cores(2, "avx2")), "2 cores, avx2;");
    EXPECT_EQ(chosen(cores(4, "avx2")), "2 cores, avx2;");
    EXPECT_EQ(chosen(cores(48, "avx512")), "64 cores, amx_bf16;");
    EXPECT_EQ(chosen(HardwareClass{.gpus = 8, .gpu = "H100", .level = ""}), "");
    EXPECT_EQ(reference_cells(few, {"record", "loss", "training s", "p", "hardware"}),
              (std::vector<std::string>{"counts (reference)", fmt::format("{:.4f}", few.loss), "0.50", "-",
                                        "1 of 2 cores of AMD EPYC, avx2"}));
    EXPECT_EQ(reference_note(cores(2, "avx2"), all, false).find("other hardware"), std::string::npos);
    EXPECT_THAT(
        reference_note(cores(48, "avx512"), all, true),
        HasSubstr(
            "[counts (reference)](records/toy/references/counts_amx_bf16.json): a table of counts of 3 tokens of context"));
    EXPECT_THAT(reference_note(cores(48, "avx512"), all, true),
                HasSubstr("other hardware, 64 cores, amx_bf16"));
    // A board without a record shows only the note.
    const std::string board = board_text(boards_of({}, track_)[0], TableStyle::text, all);
    EXPECT_THAT(board, HasSubstr("no record yet\ncounts (reference, "));
    EXPECT_TRUE(Json::parse(records_json({}, all))[1]["reference"].get<bool>());
}

}  // namespace
}  // namespace speedrun
