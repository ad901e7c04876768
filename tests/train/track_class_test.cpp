// Comparable records: classes of a track, and classes of hardware.
// build: apart
#include "train/records/track_class.h"

#include <algorithm>
#include <regex>

#include "tests/train/record_fixture.h"
#include "train/config/config_json.h"
#include "train/records/leaderboard.h"
#include "train/records/recorded_config.h"

namespace speedrun {
namespace {

using Json = nlohmann::json;

TEST(HardwareClassTest, FollowsFromWhatARecordKeeps) {
    const auto text = [](const std::string& hardware) { return hardware_class_of(hardware).text(); };
    // Fields of records from 2026-11-21, then fields of later ones.
    EXPECT_EQ(text(R"({"host": "vm", "ranks": [{"host": "vm", "device": "bf16 on 2 threads"}], "gpus": [],
                       "cpu": {"model": "AMD EPYC", "cores": 2, "avx512": true, "avx512_bf16": true}})"),
              "2 cores, avx512_bf16");
    EXPECT_EQ(text(R"({"cpu": {"cores": 4, "avx512": true, "avx512_bf16": false}})"), "4 cores, avx512");
    EXPECT_EQ(text(R"({"cpu": {"cores": 4, "avx512": false, "avx512_bf16": false}})"), "4 cores, avx2");
    EXPECT_EQ(
        text(R"({"ranks": [{"host": "a", "device": "f32 on 1 threads, avx2"}, {"host": "b", "device": "f32"}],
                       "cpu": {"cores": 4, "isa": "avx2", "isas": ["avx2", "amx_bf16"]}})"),
        "2 hosts of 4 cores, avx2");
    EXPECT_EQ(text(R"({"cpu": {"cores": 2}})"), "2 cores");
    EXPECT_EQ(text("{}"), "0 cores");
    // GPUs used by a rank count, once per host.
    const auto gpus = [&](const char* ranks) {
        return text(std::string(R"({"gpus": [{"name": "NVIDIA H100"}, {"name": "NVIDIA H100"}],
                                    "cpu": {"cores": 16, "isa": "avx512"}, "ranks": )") +
                    ranks + "}");
    };
    const std::string on_gpu = R"({"host": "a", "device": "bf16 on NVIDIA H100"})",
                      on_other = R"({"host": "b", "device": "bf16 on NVIDIA H100"})";
    EXPECT_EQ(gpus(R"([{"host": "a", "device": "bf16 on 16 threads, avx512"}])"), "16 cores, avx512");
    EXPECT_EQ(gpus(("[" + on_gpu + "]").c_str()), "1 x NVIDIA H100");
    EXPECT_EQ(gpus(("[" + on_gpu + "," + on_gpu + "," + on_gpu + "]").c_str()), "2 x NVIDIA H100");
    EXPECT_EQ(gpus(("[" + on_gpu + "," + on_gpu + "," + on_other + "]").c_str()),
              "3 x NVIDIA H100 on 2 hosts");
    expect_error(ExitCode::data, {"hardware: "}, [] { hardware_class_of(R"({"cpu": {"cores": "two"}})"); });
}

TEST(TrackClassTest, ItsRulesNameBothValues) {
    const auto classes = parse_classes(Json::parse(R"([{"name": "open"},
        {"name": "small", "max_parameters": 100, "text": "words"},
        {"name": "one", "gpus": 1}, {"name": "h100", "gpus": 8, "gpu": "H100"}, {"name": "cpu", "gpus": 0}])"));
    ASSERT_EQ(classes.size(), 5u);
    const HardwareClass cpu{.gpus = 0, .gpu = "", .hosts = 1, .cores = 2, .level = "avx2"};
    const auto on = [](int64_t count, const char* name) {
        return HardwareClass{.gpus = count, .gpu = name, .hosts = 1, .cores = 0, .level = ""};
    };
    EXPECT_EQ(classes[0].problem({.parameters = {}, .hardware = cpu}), "");
    EXPECT_EQ(classes[1].problem({.parameters = 100, .hardware = cpu}), "");
    EXPECT_EQ(classes[1].problem({.parameters = 101, .hardware = cpu}), "101 parameters, at most 100");
    EXPECT_NE(classes[1].problem({.parameters = {}, .hardware = cpu}), "");
    EXPECT_EQ(classes[2].problem({.parameters = 1, .hardware = cpu}), "made with 0 GPUs, 1 wanted");
    EXPECT_EQ(classes[2].problem({.parameters = 1, .hardware = on(1, "any")}), "");
    EXPECT_EQ(classes[3].problem({.parameters = 1, .hardware = on(8, "NVIDIA H100 80GB HBM3")}), "");
    EXPECT_EQ(classes[3].problem({.parameters = 1, .hardware = on(8, "NVIDIA A100")}),
              "made on 8 x NVIDIA A100, a GPU called H100 is wanted");
    EXPECT_EQ(classes[3].problem({.parameters = 1, .hardware = on(4, "NVIDIA H100")}),
              "made with 4 GPUs, 8 wanted");
    EXPECT_EQ(classes[4].problem({.parameters = 1, .hardware = cpu}), "");
    EXPECT_EQ(classes[4].problem({.parameters = 1, .hardware = on(1, "any")}), "made with 1 GPUs, 0 wanted");
    EXPECT_EQ(classes[0].rules_text(), "any model, any hardware");
    EXPECT_EQ(classes[1].rules_text(), "at most 100 parameters");
    EXPECT_EQ(classes[3].rules_text(), "8 GPUs, H100");
}

TEST(TrackClassTest, ARuleThatNobodyKnowsIsNotPassedOver) {
    const auto refused = [](const char* list, const std::string& part) {
        expect_error(ExitCode::data, {part}, [&] { parse_classes(Json::parse(list)); });
    };
    refused(R"([{"name": "a", "max_layers": 2}])", "class a: no such rule: max_layers");
    refused(R"([{"name": "a"}, {"name": "a"}])", "a is there twice");
    refused(R"([{"name": "a", "max_parameters": 0}])", "class a: max_parameters: 0, at least 1");
    refused(R"([{"name": "a", "gpus": -1}])", "class a: gpus: -1, at least 0");
    refused(R"([{"name": ""}])", "without a name");
    refused("[]", "classes: expected a list");
    refused("7", "classes: expected a list");
}

// A track with the classes `open` and `small`, and attempts with models of this build.
class TrackClassRecordTest : public RecordTest {
  protected:
    TrackClassRecordTest() {
        limit(10000);
        terms_.config = config(16, 0.01);
        terms_.baseline->config = config(32, 0.01);
    }

    void limit(int64_t parameters) {
        set_classes(
            fmt::format(R"([{{"name": "open"}}, {{"name": "small", "max_parameters": {}}}])", parameters));
    }

    // Writes an attempt as a record made on this number of cores. The name is taken from the terms.
    std::string record_of(AttemptFolder::Result result, int cores) {
        result.record.hardware = Json({{"cpu", {{"model", "C"}, {"cores", cores}, {"isa", "avx2"}}}}).dump();
        return RecordTest::record_of(std::move(result));
    }

    std::string leader(const std::string& track_class, int cores) const {
        return leading_record(
            dir_.file("records/toy"),
            {track_class, {.gpus = 0, .gpu = "", .hosts = 1, .cores = cores, .level = "avx2"}});
    }
};

TEST_F(TrackClassRecordTest, CountsOfATrackAreWholeNumbers) {
    const std::string text = read_text_file(dir_.file("records/toy/track.json"));
    for (const char* number : {"2.5", "1e300", "true"}) {
        Json runs = Json::parse(text), tokens = runs;
        runs["rules"]["min_runs"] = Json::parse(number);
        tokens["validation"]["tokens"] = Json::parse(number);
        for (const Json& track : {runs, tokens})
            expect_error(ExitCode::data, {"toy", "whole number"}, [&] { parse_track(track.dump(), "toy"); });
    }
}

TEST_F(TrackClassRecordTest, ARecordIsOfEveryClassWhoseRulesItMeets) {
    AttemptFolder::Result small = make_result(), large = record_of_baseline(small, "slow");
    const std::string first = record_of(large, 2);
    small.record.baseline->record = first;
    small.record.record_before = first;
    const std::string second = record_of(small, 2);
    const Record a = read(first), b = read(second);
    EXPECT_EQ(a.classes, std::vector<std::string>{"open"});
    EXPECT_EQ(b.classes, (std::vector<std::string>{"open", "small"}));
    EXPECT_EQ(a.parameters, 25056);
    EXPECT_EQ(b.parameters, 9456);
    EXPECT_EQ(rule(a, "class").why, "open: any model, any hardware; 25056 parameters");
    EXPECT_EQ(problems(second), "");
    // Each board has a leader. No small record beats that of `small`.
    EXPECT_EQ(leader("open", 2), second);
    EXPECT_EQ(leader("small", 2), second);
    std::string board;
    for (const BoardOfRecords& each : boards_of({a, b}, track())) board += board_text(each, TableStyle::text);
    const size_t at = board.find("small (at most 10000 parameters), 2 cores, avx2");
    ASSERT_NE(at, std::string::npos) << board;
    EXPECT_EQ(board.find("\nslow ", at), std::string::npos) << board;
    EXPECT_NE(board.find("\nfast ", at), std::string::npos) << board;
    // A stricter rule also applies to existing records.
    limit(9455);
    EXPECT_EQ(read(second).classes, std::vector<std::string>{"open"});
    EXPECT_EQ(leader("small", 2), "");
    EXPECT_EQ(problems(second), "");
}

TEST_F(TrackClassRecordTest, OneThatBreaksItsClassIsNoRecord) {
    terms_.race = "small";
    AttemptFolder::Result result = make_result();
    const std::string folder = record_of(result, 2);
    EXPECT_TRUE(read(folder).is_record);
    EXPECT_EQ(problems(folder), "");
    limit(9455);
    const Record record = read(folder);
    EXPECT_FALSE(record.is_record);
    EXPECT_EQ(rule(record, "class").why, "small: 9456 parameters, at most 9455");
    EXPECT_THAT(problems(folder),
                HasSubstr("verdict.rules.5.met: record.json says true, computed again false"));
    // Beaten by a record outside its class: it still leads the class.
    limit(10000);
    std::swap(terms_.config, terms_.baseline->config);
    terms_.name = "large";
    terms_.race = "open";
    terms_.baseline->record = folder;
    AttemptFolder::Result large = make_result();
    large.record.record_before = folder;
    const std::string winner = record_of(large, 2);
    EXPECT_EQ(problems(winner), "");
    EXPECT_EQ(leader("open", 2), winner);
    EXPECT_EQ(leader("small", 2), folder);
}

TEST_F(TrackClassRecordTest, EachClassOfHardwareHasItsOwnChain) {
    AttemptFolder::Result result = make_result();
    const std::string first = record_of(result, 2);
    EXPECT_EQ(leader("open", 4), "");
    // On other hardware, the record's config is rerun as the baseline. A faster run there is the first record of that
    // board.
    terms_.name = "elsewhere";
    terms_.baseline->record = first;
    terms_.baseline->config = terms_.config;
    AttemptFolder::Result elsewhere = make_result();
    const std::string second = record_of(elsewhere, 4);
    EXPECT_EQ(problems(second), "");
    EXPECT_EQ(leader("open", 2), first);
    EXPECT_EQ(leader("open", 4), second);
    const std::vector<BoardOfRecords> boards = boards_of({read(first), read(second)}, track());
    ASSERT_EQ(boards.size(), 4u);
    for (const BoardOfRecords& board : boards) EXPECT_EQ(board.records.size(), 1u);
    EXPECT_EQ(boards[1].board.hardware.text(), "4 cores, avx2");
    // The baseline must be on the same board.
    elsewhere.record.name = "wrong";
    elsewhere.record.record_before = first;
    EXPECT_THAT(problems(record_of(elsewhere, 4)),
                HasSubstr("made on 2 cores, avx2, is not on the board of class open on 4 cores, avx2"));
}

// The config file named next to a record in README.md equals the record's config, except for the seed.
TEST(FrontPageTest, NamesTheConfigsOfItsRecords) {
    const std::filesystem::path root = SPEEDRUN_SOURCE_ROOT;
    const std::string page = read_text_file((root / "README.md").string());
    const std::regex row(R"(\]\((records/kjv/[^)]*)\)[^\n]*\]\((configs/[^)]*)\) \|)");
    int rows = 0;
    for (std::sregex_iterator i(page.begin(), page.end(), row), end; i != end; ++i, ++rows) {
        const Record record = read_record((root / (*i)[1].str()).string());
        const std::string made_with = config_to_json(recorded_config(record.config, (*i)[1])),
                          named = config_to_json(read_config((root / (*i)[2].str()).string(), {}));
        for (const KeyDifference& d : key_differences(made_with, named)) {
            if (d.key == "memory.logits_at_once")
                continue;  // now 0, which means the value that was used on the CPU
            EXPECT_EQ(d.key, "seed") << (*i)[1] << ": " << d.before << ", in " << (*i)[2] << ": " << d.after;
        }
    }
    EXPECT_GE(rows, 4);
}

bool is_config_of(const Record& record, const std::string& config) {
    const auto other = [](const KeyDifference& d) {
        return d.key != "seed" && d.key != "memory.logits_at_once";  // now 0, which means the former value
    };
    const std::vector<KeyDifference> differences = key_differences(
        config_to_json(recorded_config(record.config, record.name)), config_to_json(read_config(config, {})));
    return std::none_of(differences.begin(), differences.end(), other);
}

// CLASS=CONFIG in the script: the config leads a board of the class.
TEST(FrontPageTest, TheQuickstartTrainsWhatLeads) {
    const std::filesystem::path root = SPEEDRUN_SOURCE_ROOT;
    const std::string folder = (root / "records/kjv").string(),
                      script = read_text_file((root / "scripts/quickstart.sh").string());
    const Track track = read_track(folder);
    std::vector<Record> records;
    for (const std::string& each : record_folders(folder)) records.push_back(read_record(each));
    const std::regex assignment(R"((\w+)=(configs/\S+\.json))");
    int named = 0;
    for (std::sregex_iterator i(script.begin(), script.end(), assignment), end; i != end; ++i) {
        const TrackClass* c = track.find_class((*i)[1]);
        if (!c) continue;
        ++named;
        const bool leads = std::any_of(records.begin(), records.end(), [&](const Record& record) {
            return record.folder_name() == leading_record(folder, board_of(*c, record.hardware_class)) &&
                   is_config_of(record, (root / (*i)[2].str()).string());
        });
        EXPECT_TRUE(leads) << "scripts/quickstart.sh: " << (*i)[0] << " leads no board of its class";
    }
    EXPECT_GE(named, 1) << "scripts/quickstart.sh names no CLASS=CONFIG";
}

}  // namespace
}  // namespace speedrun
