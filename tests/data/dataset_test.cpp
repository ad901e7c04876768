// Covers: data/shard_listing.cpp
#include "data/dataset.h"

#include "tests/data/test_files.h"

namespace speedrun::dataset_test {

namespace fs = std::filesystem;

DatasetInfo byte_info() {
    return {"toy", "bytes", 257, 256, {{"train_000000.bin", "train", 3, std::string(64, 'a')}}, ""};
}

TEST(DatasetInfo, RoundTrips) {
    const TempDir dir;
    write_dataset_info(dir.file("dataset.json"), byte_info());
    const DatasetInfo info = read_dataset_info(dir.file("dataset.json"));
    EXPECT_EQ(info.name, "toy");
    EXPECT_EQ(info.tokenizer, "bytes");
    EXPECT_EQ(info.vocab_size, 257);
    EXPECT_EQ(info.separator, 256);
    ASSERT_EQ(info.shards.size(), 1u);
    EXPECT_EQ(info.shards[0].file, "train_000000.bin");
    EXPECT_EQ(info.shards[0].split, "train");
    EXPECT_EQ(info.shards[0].tokens, 3);
    EXPECT_EQ(info.shards[0].sha256, std::string(64, 'a'));
}

TEST(DatasetInfo, SaysWhereSeparatorsAre) {
    const TempDir dir;
    const std::string path = dir.file("dataset.json");
    DatasetInfo info = byte_info();
    for (const SeparatorPlace place : {SeparatorPlace::before, SeparatorPlace::after}) {
        info.separators = place;
        write_dataset_info(path, info);
        EXPECT_EQ(read_dataset_info(path).separators, place);
    }
    // A dataset.json written before this key existed.
    dir.write("dataset.json",
              R"({"name": "x", "tokenizer": "bytes", "vocab_size": 257, "separator": 256, "shards": []})");
    EXPECT_EQ(read_dataset_info(path).separators, SeparatorPlace::after);
    EXPECT_EQ(DatasetInfo{}.separators, SeparatorPlace::before) << "FineWeb's files";
}

TEST(DatasetInfo, RejectsDamage) {
    const TempDir dir;
    const auto expect_rejected = [&](std::string_view json, std::initializer_list<std::string> parts) {
        const std::string path = dir.write("dataset.json", json);
        expect_error(ExitCode::data, parts, [&] { read_dataset_info(path); });
    };
    const std::string head = R"({"name": "x", "tokenizer": "bytes", "vocab_size": 257, "separator": 256, )";
    expect_rejected("{", {"dataset.json", "not valid JSON"});
    expect_rejected("[]", {"JSON object"});
    expect_rejected(R"({"tokenizer": "bytes"})", {"key 'name' is missing"});
    expect_rejected(R"({"name": 5})", {"key 'name' has a wrong type: 5"});
    expect_rejected(R"({"name": "x", "tokenizer": "t", "vocab_size": 70000, "separator": 0})",
                    {"70000", "65536"});
    expect_rejected(R"({"name": "x", "tokenizer": "t", "vocab_size": 10, "separator": 10})",
                    {"separator is 10", "= 9"});
    expect_rejected(head + R"("separators": "between", "shards": []})",
                    {"separators is 'between'", "'before' or 'after'"});
    expect_rejected(head + R"("shards": 3})", {"'shards' has a wrong type"});
    expect_rejected(head + R"("shards": [4]})", {"shards[0]", "object"});
    expect_rejected(head + R"("shards": [{"file": "a"}]})", {"shards[0]", "'split' is missing"});
    expect_rejected(head + R"("shards": [{"file": "../a", "split": "val", "tokens": 1, "sha256": ""}]})",
                    {"shards[0]", "'../a'", "in this folder"});
    expect_rejected(head + R"("shards": [{"file": "a", "split": "val", "tokens": 1e300, "sha256": ""}]})",
                    {"shards[0]", "'tokens' has a wrong type: 1e+300"});
    expect_rejected(
        head + R"("shards": [{"file": "a", "split": "val", "tokens": 9223372036854775808, "sha256": ""}]})",
        {"shards[0]", "'tokens' has a wrong type: 9223372036854775808"});
    expect_rejected(head + R"("vocabulary_sha256": 1, "shards": []})",
                    {"'vocabulary_sha256' has a wrong type"});
    expect_rejected("{\"name\": " + std::string(100000, '['), {"not valid JSON", "nested deeper than 64"});
    expect_rejected(head + R"("shards": [{"file": "a", "split": "test", "tokens": 1, "sha256": ""}]})",
                    {"shards[0]", "'test'"});
    expect_error(ExitCode::data, {"absent.json"}, [&] { read_dataset_info(dir.file("absent.json")); });
}

TEST(FindDatasetInfo, FindsItBesideTheShards) {
    const TempDir dir;
    EXPECT_FALSE(find_dataset_info({dir.file("train_000000.bin")}).has_value());
    EXPECT_FALSE(find_dataset_info({}).has_value());
    write_dataset_info(dir.file("dataset.json"), byte_info());
    const auto info = find_dataset_info({dir.file("train_000000.bin")});
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->name, "toy");
    expect_error(ExitCode::data, {"other.bin", "not listed", "dataset.json"}, [&] {
        find_dataset_info({dir.file("train_000000.bin"), dir.file("other.bin")});
    });
}

TEST(FindDatasetInfo, RejectsFoldersThatDisagree) {
    const TempDir bytes, fineweb;
    write_dataset_info(bytes.file("dataset.json"), byte_info());
    expect_error(ExitCode::data, {bytes.path(), fineweb.path(), "257", "50257"}, [&] {
        find_dataset_info({bytes.file("train_000000.bin"), fineweb.file("fineweb.bin")});
    });
}

TEST(FindDatasetInfo, RejectsSeparatorsAtDifferentPlaces) {
    const TempDir one, two;
    DatasetInfo info = byte_info();
    write_dataset_info(one.file("dataset.json"), info);
    info.separators = SeparatorPlace::after;
    write_dataset_info(two.file("dataset.json"), info);
    expect_error(ExitCode::data, {one.path(), two.path(), "separators", "before and after"}, [&] {
        find_dataset_info({one.file("train_000000.bin"), two.file("train_000000.bin")});
    });
}

// Links of links, and a link to a folder.
TEST(FindDatasetInfo, FollowsLinksToShards) {
    const TempDir data, links;
    write_dataset_info(data.file("dataset.json"), byte_info());
    data.write("train_000000.bin", "");
    data.write("other.bin", "");
    fs::create_symlink(data.file("train_000000.bin"), links.file("a.bin"));
    fs::create_symlink(links.file("a.bin"), links.file("b.bin"));
    fs::create_symlink(data.path(), links.file("folder"));
    fs::create_symlink(data.file("other.bin"), links.file("other.bin"));
    for (const char* file : {"a.bin", "b.bin", "folder/train_000000.bin"}) {
        const auto info = find_dataset_info({links.file(file)});
        ASSERT_TRUE(info.has_value()) << file;
        EXPECT_EQ(info->name, "toy");
    }
    expect_error(ExitCode::data, {"other.bin", "not listed", data.path()},
                 [&] { find_dataset_info({links.file("other.bin")}); });
    EXPECT_FALSE(find_dataset_info({links.file("nowhere.bin")}).has_value());
}

TEST(DatasetInfo, ShardsWithoutOneAreReadAsGpt2Tokens) {
    EXPECT_EQ(DatasetInfo{}.name.find("fineweb"), std::string::npos);
    EXPECT_EQ(DatasetInfo{}.tokenizer, "gpt2");
    EXPECT_EQ(DatasetInfo{}.vocab_size, 50257);
    EXPECT_EQ(DatasetInfo{}.separator, 50256);
}

// The vectors for the empty string and "abc" are in FIPS 180-2; the third covers more than one buffer.
TEST(Sha256, KnownAnswers) {
    const TempDir dir;
    EXPECT_EQ(sha256_file(dir.write("empty", "")),
              "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_file(dir.write("abc", "abc")),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_file(dir.write("long", std::string(3'000'000, 'x'))),
              "e55b8bdf621ddaa8f462c74745db9680d3bb7536a9cf854f8d6668b34a287890");
    expect_error(ExitCode::data, {"absent"}, [&] { sha256_file(dir.file("absent")); });
    expect_error(ExitCode::data, {"a folder, expected a regular file"}, [&] { sha256_file(dir.path()); });
}

}  // namespace speedrun::dataset_test
