// Problems that verify reports for a modified record folder.
// build: apart
#include <set>

#include "data/sha256.h"
#include "tests/train/record_fixture.h"
#include "train/records/gzip.h"
#include "train/records/record_verify.h"

namespace speedrun {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;
using RecordVerifyTest = RecordTest;

void rehash(Json& json) {
    json.erase("sha256");
    const std::string text = json.dump(2);
    Sha256 hash;
    hash.update(text.data(), text.size());
    json["sha256"] = hash.hex();
}

// A different value of the same type.
Json changed(const Json& value) {
    if (value.is_boolean()) return !value.get<bool>();
    if (value.is_number_integer()) return value.get<int64_t>() + 1;
    if (value.is_number()) return value.get<double>() * (1 + 1e-6);
    if (value.is_null()) return 1;
    std::string text = value.get<std::string>() + "0";
    return text;
}

// Changes every value of record.json, one at a time. The hash detects each change. With an updated hash, every value
// determined by the runs is still detected.
TEST_F(RecordVerifyTest, FindsEveryChangedFigure) {
    const std::string folder = write(make_result()), path = folder + "/record.json";
    const std::string whole = read_text_file(path);
    std::set<std::string> free;  // values protected only by the hash
    const Json flat = Json::parse(whole).flatten();
    for (const auto& [pointer, value] : flat.items()) {
        Json json = Json::parse(whole);
        json[Json::json_pointer(pointer)] = changed(value);
        write_file(path, json.dump(2) + "\n");
        EXPECT_FALSE(verify_record(folder).problems.empty()) << pointer;
        rehash(json);  // also restores a changed hash
        write_file(path, json.dump(2) + "\n");
        if (!verify_record(folder).problems.empty()) continue;
        free.insert(pointer.starts_with("/runs/") ? pointer.substr(pointer.find('/', 6)) : pointer);
    }
    // Inputs. The README's table rounds start-up times.
    const std::set<std::string> expected = {"/what",
                                            "/git_sha",
                                            "/binary_sha256",
                                            "/build/type",
                                            "/began_utc",
                                            "/startup_ms",
                                            "/metrics/every",
                                            "/hardware/host",
                                            "/hardware/os",
                                            "/hardware/memory_bytes",
                                            "/hardware/ranks",
                                            "/hardware/gpus",
                                            "/hardware/cpu/model",
                                            "/hardware/cpu/cores",
                                            "/data/0/file",
                                            "/data/0/tokens",
                                            "/data/1/file",
                                            "/data/1/tokens",
                                            "/config/seed",
                                            "/baseline/config/seed",
                                            "/interrupted",
                                            "/sha256"};
    for (const std::string& pointer : free) EXPECT_TRUE(expected.count(pointer)) << pointer;
    std::string same_number = whole;
    const std::string figure = "\"train_ms\": 120.012";
    same_number.insert(same_number.find(figure) + figure.size(), "000");
    for (const std::string& text : {whole + " ", same_number}) {
        write_file(path, text);
        EXPECT_FALSE(verify_record(folder).problems.empty());
    }
    write_file(path, whole);
    EXPECT_TRUE(verify_record(folder).problems.empty());
}

TEST_F(RecordVerifyTest, NamesBothValues) {
    const std::string folder = write(make_result()), path = folder + "/record.json";
    const auto problem = [&](const std::string& pointer, const Json& value) {
        const std::string whole = read_text_file(path);
        Json json = Json::parse(whole);
        json[Json::json_pointer(pointer)] = value;
        rehash(json);
        write_file(path, json.dump(2) + "\n");
        const RecordCheck check = verify_record(folder);
        write_file(path, whole);
        return check.problems.empty() ? "nothing" : check.problems.front();
    };
    EXPECT_EQ(problem("/runs/0/train_ms", 119.0),
              "runs.0.train_ms: record.json says 119.0, computed again 120.012");
    EXPECT_EQ(problem("/verdict/is_record", false),
              "verdict.is_record: record.json says false, computed again true");
    EXPECT_THAT(problem("/statistics/speedup", 1.6), HasSubstr("record.json says 1.6, computed again 1.49"));
    EXPECT_THAT(problem("/runs/1/seed", 2), HasSubstr("two runs of the baseline with seed 2"));
    EXPECT_THAT(problem("/runs", 3), HasSubstr("record.json: "));
    EXPECT_THAT(problem("/config", 3), HasSubstr("config: expected an object, found 3"));
}

TEST_F(RecordVerifyTest, FindsChangedMetricsAndFiles) {
    const std::string folder = write(make_result()), file = folder + "/candidate-seed2.jsonl.gz";
    const std::string whole = read_text_file(file);
    const auto problems = [&] {
        std::string text;
        for (const std::string& problem : verify_record(folder).problems) text += problem + "\n";
        return text;
    };
    for (size_t at = 0; at < whole.size(); at += 7) {  // any byte, including the header's
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        write_file(file, damaged);
        EXPECT_THAT(problems(), HasSubstr("runs.3.metrics.sha256")) << at;
    }
    std::string text = gunzip(whole, "z");
    text[text.rfind("1.142") + 4] = '3';
    write_file(file, gzip(text));
    EXPECT_THAT(problems(), HasSubstr("runs.3.loss: record.json says 1.142, computed again 1.143"));
    EXPECT_THAT(problems(), HasSubstr("statistics.candidate.loss.mean"));
    fs::remove(file);
    EXPECT_EQ(problems(),
              "candidate-seed2.jsonl.gz: missing; it holds the metrics of the candidate, seed 2\n");
    write_file(file, whole);
    EXPECT_EQ(problems(), "");
    write_file(folder + "/more.jsonl.gz", whole);
    EXPECT_THAT(problems(), HasSubstr("more.jsonl.gz: metrics of no run"));
    fs::remove(folder + "/more.jsonl.gz");
    const std::string readme = read_text_file(folder + "/README.md");
    std::string other = readme;
    other[other.find("1.1420") + 3] = '3';
    write_file(folder + "/README.md", other);
    EXPECT_THAT(problems(), HasSubstr("says 1.1320, computed again 1.1420"));
    write_file(folder + "/README.md", "A word before.\n" + readme);
    EXPECT_EQ(problems(), "");
    fs::rename(folder, dir_.file("records/toy/2026-01-01_fast"));
    EXPECT_THAT(verify_record(dir_.file("records/toy/2026-01-01_fast")).problems.front(),
                HasSubstr("the folder should be"));
}

// One fault gives one line, without errors in figures derived from it.
TEST_F(RecordVerifyTest, SaysOnceWhatIsWrong) {
    const std::string folder = write(make_result()), path = folder + "/record.json";
    const std::string whole = read_text_file(path);
    const auto problems = [&](const std::string& pointer, const Json& value, bool hash_fits) {
        Json json = Json::parse(whole);
        json[Json::json_pointer(pointer)] = value;
        if (hash_fits) rehash(json);
        write_file(path, json.dump(2) + "\n");
        return verify_record(folder).problems;
    };
    using Lines = std::vector<std::string>;
    EXPECT_EQ(problems("/class", "huge", true), Lines{"class: track toy has no class huge; it has open"});
    EXPECT_EQ(problems("/class", "huge", false), Lines{"class: track toy has no class huge; it has open"});
    const std::string hash(64, 'a'), figure = Json::parse(whole)["runs"][0]["metrics"]["sha256"];
    EXPECT_EQ(problems("/sha256", hash, false),
              Lines{"sha256: record.json was changed since it was written"});
    EXPECT_EQ(problems("/what", "Luck.", false),
              Lines{"sha256: record.json was changed since it was written"});
    EXPECT_EQ(
        problems("/runs/0/metrics/sha256", hash, false),
        Lines{"runs.0.metrics.sha256: record.json says \"" + hash + "\", computed again \"" + figure + "\""});
    // A figure determined by the metrics, and one that is not.
    Json json = Json::parse(whole);
    json["what"] = "Luck.";
    json["runs"][0]["metrics"]["sha256"] = hash;
    write_file(path, json.dump(2) + "\n");
    EXPECT_EQ(verify_record(folder).problems.size(), 2u);
}

}  // namespace
}  // namespace speedrun
