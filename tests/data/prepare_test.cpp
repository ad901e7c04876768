// Datasets from text files.
// Covers: data/dataset_writer.cpp data/shard_writer.cpp data/open_file.cpp
#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/tokenizer.h"
#include "tests/data/test_files.h"

namespace speedrun::prepare_test {

namespace fs = std::filesystem;

// Returns the text of all shards of a split, with '|' for the separator.
std::string text_of(const std::string& folder, const DatasetInfo& info, const std::string& split) {
    std::string text;
    for (const ShardInfo& listed : info.shards) {
        if (listed.split != split) continue;
        const Shard shard(folder + "/" + listed.file);
        EXPECT_EQ(shard.size(), listed.tokens);
        EXPECT_EQ(sha256_file(shard.path()), listed.sha256);
        for (const uint16_t token : shard.read_all())
            text.push_back(token == 256 ? '|' : static_cast<char>(token));
    }
    return text;
}

class PrepareTest : public testing::Test {
  protected:
    PrepareOptions options(std::vector<std::string> inputs) const {
        PrepareOptions result;
        result.inputs = std::move(inputs);
        result.out_dir = dir_.file("out");
        result.quiet = true;
        return result;
    }
    std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(dir_.file("out"))) {
            names.push_back(entry.path().filename().string());
        }
        std::sort(names.begin(), names.end());
        return names;
    }
    const TempDir dir_;
};

TEST_F(PrepareTest, EachFileIsOneDocument) {
    const PrepareSummary summary =
        prepare_dataset(options({dir_.write("a", "first\n"), dir_.write("none", ""), dir_.write("b", "x")}));
    EXPECT_EQ(summary.train.documents, 2);
    EXPECT_EQ(summary.train.tokens, 9);
    EXPECT_EQ(summary.val.documents, 0);
    const DatasetInfo info = read_dataset_info(dir_.file("out/dataset.json"));
    EXPECT_EQ(info.name, "out");
    EXPECT_EQ(info.tokenizer, "bytes");
    EXPECT_EQ(info.vocab_size, 257);
    EXPECT_EQ(info.separator, 256);
    EXPECT_EQ(info.separators, SeparatorPosition::after);
    EXPECT_EQ(text_of(dir_.file("out"), info, "train"), "first\n|x|");
    EXPECT_EQ(files(), (std::vector<std::string>{"dataset.json", "train_000000.bin"}));
    EXPECT_TRUE(find_dataset_info({dir_.file("out/train_000000.bin")}).has_value());
}

TEST_F(PrepareTest, MarkerSplitsDocuments) {
    PrepareOptions settings =
        options({dir_.write("a", "%%\none\n1\n%%\ntwo\n%%\nthree\n%%\n%%\n %%\n%%\nfive\n%%\nsix")});
    settings.document_marker = "%%";
    settings.val_every = 3;
    settings.name = "toy";
    const PrepareSummary summary = prepare_dataset(settings);
    EXPECT_EQ(summary.info.name, "toy");
    EXPECT_EQ(text_of(dir_.file("out"), summary.info, "train"), "one\n1\n|two\n| %%\n|five\n|");
    EXPECT_EQ(text_of(dir_.file("out"), summary.info, "val"), "three\n|six|");
    EXPECT_EQ(summary.train.documents, 4);
    EXPECT_EQ(summary.val.documents, 2);
    EXPECT_EQ(summary.val.tokens, 11);
}

TEST_F(PrepareTest, SplitsShards) {
    PrepareOptions settings = options({dir_.write("a", "0123456789"), dir_.write("b", "abcde")});
    for (const int64_t shard_tokens : {1, 4, 11, 16, 17, 18}) {
        settings.shard_tokens = shard_tokens;
        settings.force = true;
        const PrepareSummary summary = prepare_dataset(settings);
        EXPECT_EQ(text_of(dir_.file("out"), summary.info, "train"), "0123456789|abcde|");
        const size_t shards = static_cast<size_t>((17 + shard_tokens - 1) / shard_tokens);
        ASSERT_EQ(summary.info.shards.size(), shards);
        EXPECT_EQ(files().size(), shards + 1) << "shards of the run before must be gone";
        for (size_t i = 0; i + 1 < shards; ++i) EXPECT_EQ(summary.info.shards[i].tokens, shard_tokens);
    }
}

TEST_F(PrepareTest, CopiesVocabularyToShards) {
    const std::string vocabulary = SPEEDRUN_SOURCE_ROOT "/tests/data/fixtures/small_tokenizer.json";
    PrepareOptions settings =
        options({dir_.write("a", "they'll run <|endoftext|>"), dir_.write("b", "a rest of 1 \xff")});
    settings.tokenizer = "gpt2";
    settings.vocabulary = vocabulary;
    prepare_dataset(settings);
    EXPECT_EQ(files(), (std::vector<std::string>{"dataset.json", "train_000000.bin", "vocabulary"}));
    const std::string shard_file = dir_.file("out/train_000000.bin");
    const DatasetInfo info = find_dataset_info({shard_file}).value();
    EXPECT_EQ(info.tokenizer, "gpt2");
    EXPECT_EQ(info.vocab_size, 857);
    EXPECT_EQ(info.separator, 856);
    const auto tokenizer = make_tokenizer("gpt2", find_vocabulary(info));
    const Shard shard(shard_file);
    const std::vector<uint16_t> stored = shard.read_all();
    const std::vector<int32_t> tokens(stored.begin(), stored.end());
    EXPECT_EQ(tokenizer->decode(tokens), "they'll run <|endoftext|>a rest of 1 \xff");
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 856), 2);

    std::ofstream(dir_.file("out/vocabulary"), std::ios::app) << "YWI= 999\n";
    expect_error(ExitCode::data, {"out/vocabulary: SHA-256 is", "expected"}, [&] { find_vocabulary(info); });
    fs::remove(dir_.file("out/vocabulary"));
    expect_error(ExitCode::data, {"out/vocabulary"}, [&] { find_vocabulary(info); });
    settings = options({dir_.file("a")});
    settings.force = true;
    prepare_dataset(settings);
    EXPECT_EQ(files(), (std::vector<std::string>{"dataset.json", "train_000000.bin"}));
    EXPECT_EQ(find_vocabulary(find_dataset_info({shard_file}).value()), "");
}

// A folder with `vocabulary` alone: a dataset, or a run's tokenizer.
TEST_F(PrepareTest, TakesVocabularyOfDataset) {
    const std::string vocabulary = SPEEDRUN_SOURCE_ROOT "/tests/data/fixtures/small_tokenizer.json";
    PrepareOptions settings = options({dir_.write("a", "they'll run")});
    settings.vocabulary = vocabulary;
    const std::string sha256 = prepare_dataset(settings).info.vocabulary_sha256;
    settings.vocabulary = settings.out_dir;
    settings.force = true;
    EXPECT_EQ(prepare_dataset(settings).info.vocabulary_sha256, sha256) << "its own vocabulary";
    EXPECT_EQ(read_text(dir_.file("out/vocabulary")), read_text(vocabulary));
    settings.out_dir = dir_.file("other");
    EXPECT_EQ(prepare_dataset(settings).info.vocabulary_sha256, sha256);
    dir_.write("out/tokenizer.json", "{}");
    expect_error(ExitCode::data, {"out/tokenizer.json"}, [&] { prepare_dataset(settings); });
}

TEST_F(PrepareTest, HoldsOutFractionAtLines) {
    std::string lines;
    for (int i = 0; i < 100; ++i) lines += fmt::format("line {:3}\n", i);  // 9 bytes
    PrepareOptions settings = options({dir_.write("a", lines)});
    settings.force = true;
    for (const auto& [fraction, train_lines] :
         {std::pair(0.1, 90), {0.5, 50}, {0.099, 91}, {0.995, 1}, {0.01, 99}}) {
        settings.val_fraction = fraction;
        const PrepareSummary summary = prepare_dataset(settings);
        const auto cut = static_cast<size_t>(train_lines) * 9;
        EXPECT_EQ(text_of(dir_.file("out"), summary.info, "train"), lines.substr(0, cut) + "|") << fraction;
        EXPECT_EQ(text_of(dir_.file("out"), summary.info, "val"), lines.substr(cut) + "|") << fraction;
        EXPECT_EQ(summary.train.documents, 1);
        EXPECT_EQ(summary.val.documents, 1);
    }
    settings.val_fraction = 0.005;
    expect_error(ExitCode::data, {"--val-fraction 0.005", "validation"}, [&] { prepare_dataset(settings); });
    settings.inputs = {dir_.write("old", "mac\rlines\rend")};
    settings.val_fraction = 0.5;
    EXPECT_EQ(text_of(dir_.file("out"), prepare_dataset(settings).info, "val"), "end|");
    settings.val_fraction = 0.6;
    settings.inputs = {dir_.write("windows", "some\r\nlines\r\n")};
    EXPECT_EQ(text_of(dir_.file("out"), prepare_dataset(settings).info, "val"), "lines\r\n|");
}

// Documents of a marker or of JSON Lines are held out whole; files are cut only where the fraction begins.
TEST_F(PrepareTest, HoldsOutFractionAtDocuments) {
    PrepareOptions settings = options({dir_.write("a", "1\n2\n%%\n3\n4\n%%\n5\n6\n")});
    settings.document_marker = "%%";
    settings.val_fraction = 0.4;
    DatasetInfo info = prepare_dataset(settings).info;
    EXPECT_EQ(text_of(dir_.file("out"), info, "train"), "1\n2\n|3\n4\n|");
    EXPECT_EQ(text_of(dir_.file("out"), info, "val"), "5\n6\n|");
    settings =
        options({dir_.write("x", "x1\nx2\n"), dir_.write("y", "y1\ny2\n"), dir_.write("z", "z1\nz2\n")});
    settings.force = true;
    settings.val_fraction = 0.5;
    info = prepare_dataset(settings).info;
    EXPECT_EQ(text_of(dir_.file("out"), info, "train"), "x1\nx2\n|y1\n|");
    EXPECT_EQ(text_of(dir_.file("out"), info, "val"), "y2\n|z1\nz2\n|");
}

TEST_F(PrepareTest, MarkerMustOccur) {
    PrepareOptions settings = options({dir_.write("a", "one\ntwo %%\n"), dir_.write("b", "three\n")});
    settings.document_marker = "%%";
    expect_error(ExitCode::data, {"--document-marker '%%' is no line of the 2 text file(s)", "1 times"},
                 [&] { prepare_dataset(settings); });
    settings.inputs.push_back(dir_.write("c", "four\r\n%%\r\nfive"));
    EXPECT_EQ(prepare_dataset(settings).train.documents, 4);
    settings.force = true;
    settings.inputs = {dir_.write("d.jsonl", "{\"text\": \"a\"}\n")};
    expect_error(ExitCode::data, {"JSON Lines"}, [&] { prepare_dataset(settings); });
}

TEST_F(PrepareTest, TrainsVocabulary) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "the other brother then\n";
    PrepareOptions settings = options({dir_.write("a", text)});
    settings.train_bpe = 262;
    settings.shard_tokens = 100;
    const PrepareSummary summary = prepare_dataset(settings);
    EXPECT_EQ(summary.info.tokenizer, "gpt2");
    EXPECT_EQ(summary.info.vocab_size, 262);
    EXPECT_EQ(summary.info.separator, 0);
    EXPECT_EQ(read_text(dir_.file("out/tokenizer.json")), read_text(dir_.file("out/vocabulary")));
    const auto tokenizer =
        make_tokenizer("gpt2", find_vocabulary(read_dataset_info(dir_.file("out/dataset.json"))));
    std::vector<int32_t> tokens;
    for (const ShardInfo& shard : summary.info.shards)
        for (const uint16_t token : Shard(dir_.file("out/" + shard.file)).read_all()) tokens.push_back(token);
    EXPECT_EQ(tokenizer->decode(tokens), text);
    EXPECT_LT(tokens.size(), text.size() / 2);

    // Replaced with the dataset, but never another's file.
    settings.force = true;
    settings.train_bpe = 260;
    EXPECT_EQ(prepare_dataset(settings).info.vocab_size, 260);
    EXPECT_EQ(read_text(dir_.file("out/tokenizer.json")), read_text(dir_.file("out/vocabulary")));
    settings.train_bpe.reset();
    prepare_dataset(settings);
    EXPECT_FALSE(fs::exists(dir_.file("out/tokenizer.json")));
    dir_.write("out/tokenizer.json", "mine");
    prepare_dataset(settings);
    settings.train_bpe = 260;
    expect_error(ExitCode::usage, {"tokenizer.json", "another folder"}, [&] { prepare_dataset(settings); });
    EXPECT_EQ(read_text(dir_.file("out/tokenizer.json")), "mine");
}

TEST_F(PrepareTest, RefusesToOverwrite) {
    const PrepareOptions settings = options({dir_.write("a", "text")});
    prepare_dataset(settings);
    const std::string before = read_text(dir_.file("out/dataset.json"));
    expect_error(ExitCode::usage, {"out", "dataset.json", "--force"}, [&] { prepare_dataset(settings); });
    fs::remove(dir_.file("out/dataset.json"));
    expect_error(ExitCode::usage, {"train_000000.bin", "--force"}, [&] { prepare_dataset(settings); });
    PrepareOptions forced = settings;
    forced.force = true;
    prepare_dataset(forced);
    EXPECT_EQ(read_text(dir_.file("out/dataset.json")), before);
}

TEST_F(PrepareTest, FailureKeepsOldDataset) {
    PrepareOptions settings = options({dir_.write("a", "text")});
    dir_.write("unrelated", "");
    prepare_dataset(settings);
    dir_.write("out/notes.txt", "mine");
    settings.force = true;
    settings.inputs.push_back(dir_.file("absent"));
    expect_error(ExitCode::data, {"absent"}, [&] { prepare_dataset(settings); });
    EXPECT_EQ(files(), (std::vector<std::string>{"dataset.json", "notes.txt", "train_000000.bin"}));
    EXPECT_EQ(text_of(dir_.file("out"), read_dataset_info(dir_.file("out/dataset.json")), "train"), "text|");
    settings.inputs = {dir_.write("a", "new")};
    prepare_dataset(settings);
    EXPECT_EQ(read_text(dir_.file("out/notes.txt")), "mine");
}

TEST_F(PrepareTest, FailureLeavesNoNewFolder) {
    PrepareOptions settings = options({dir_.write("binary", std::string(20, '\0'))});
    for (const char* const folder : {"out", "out/", "out/a/b"}) {
        settings.out_dir = dir_.file(folder);
        expect_error(ExitCode::data, {"looks binary"}, [&] { prepare_dataset(settings); });
        EXPECT_FALSE(fs::exists(dir_.file("out"))) << folder;
    }
    fs::create_directory(dir_.file("out"));
    expect_error(ExitCode::data, {"looks binary"}, [&] { prepare_dataset(settings); });
    EXPECT_TRUE(files().empty()) << "the user's folder stays, without the folders in it";
}

TEST_F(PrepareTest, RejectsInvalidArguments) {
    const std::string input = dir_.write("a", "text");
    const auto expect_rejected = [&](ExitCode code, std::initializer_list<std::string> parts, auto change) {
        PrepareOptions settings = options({input});
        change(settings);
        expect_error(code, parts, [&] { prepare_dataset(settings); });
        EXPECT_FALSE(fs::exists(dir_.file("out/dataset.json")));
    };
    using Options = PrepareOptions;
    expect_rejected(ExitCode::usage, {"no input"}, [](Options& o) { o.inputs.clear(); });
    expect_rejected(ExitCode::usage, {"output folder"}, [](Options& o) { o.out_dir.clear(); });
    expect_rejected(ExitCode::usage, {"--val-every is 1"}, [](Options& o) { o.val_every = 1; });
    expect_rejected(ExitCode::usage, {"--shard-tokens is 0"}, [](Options& o) { o.shard_tokens = 0; });
    expect_rejected(ExitCode::usage, {"--val-fraction is 1,"}, [](Options& o) { o.val_fraction = 1; });
    expect_rejected(ExitCode::usage, {"--val-fraction is nan"},
                    [](Options& o) { o.val_fraction = std::nan(""); });
    expect_rejected(ExitCode::usage, {"--val-every", "choose one"},
                    [](Options& o) { o.val_every = 2, o.val_fraction = 0.1; });
    expect_rejected(ExitCode::usage, {"--document-marker has a line end"},
                    [](Options& o) { o.document_marker = "%%\r"; });
    expect_rejected(ExitCode::usage, {"--train-bpe is 256", "257 to 65536"},
                    [](Options& o) { o.train_bpe = 256; });
    expect_rejected(ExitCode::usage, {"--train-bpe is 0", "257 to 65536"},
                    [](Options& o) { o.train_bpe = 0; });
    expect_rejected(ExitCode::usage, {"leave --vocab out"},
                    [](Options& o) { o.train_bpe = 300, o.vocabulary = "x"; });
    expect_rejected(ExitCode::usage, {"leave --tokenizer bytes out"},
                    [](Options& o) { o.train_bpe = 300, o.tokenizer = "bytes"; });
    expect_rejected(ExitCode::usage, {"'words'"},
                    [](Options& o) { o.train_bpe = 300, o.tokenizer = "words"; });
    expect_rejected(ExitCode::data, {"read their inputs twice"},
                    [](Options& o) { o.val_fraction = 0.1, o.inputs = {"/dev/null"}; });
    expect_rejected(ExitCode::usage, {"'words'"}, [](Options& o) { o.tokenizer = "words"; });
    expect_rejected(ExitCode::data, {"--val-every 2", "only 1"}, [](Options& o) { o.val_every = 2; });
    expect_rejected(ExitCode::data, {"no text"}, [&](Options& o) { o.inputs = {dir_.write("empty", "")}; });
    expect_rejected(ExitCode::usage, {"--out", "a: a file, expected a folder"},
                    [&](Options& o) { o.out_dir = input; });
    expect_rejected(ExitCode::data, {"a/out: Not a directory"},
                    [&](Options& o) { o.out_dir = input + "/out"; });
}

}  // namespace speedrun::prepare_test
