// Checkpoint files: damage is detected and named, and a crash or a full disk at any call leaves a good checkpoint.
// Covers: train/checkpoint/*.cpp
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "data/dataset.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/checkpoint/safetensors.h"

namespace speedrun::checkpoint_test {

namespace fs = std::filesystem;

struct Crash {};

// The first n calls succeed. After them every call throws (process killed) or fails with ENOSPC.
class BadFileSystem final : public FileSystem {
  public:
    explicit BadFileSystem(int good_calls, bool crashes) : left_(good_calls), crashes_(crashes) {}
    bool met() const { return met_; }

    int make_folder(const std::string& path) override { return bad() ? -1 : FileSystem::make_folder(path); }
    int create(const std::string& path) override { return bad() ? -1 : FileSystem::create(path); }
    int64_t write(int file, const void* data, size_t bytes) override {
        if (!bad()) return FileSystem::write(file, data, bytes);
        return FileSystem::write(file, data, bytes / 2) < 0 || bytes > 1 ? -1 : 0;  // a partial write
    }
    int sync(int file) override { return bad() ? -1 : FileSystem::sync(file); }
    int sync_folder(const std::string& path) override { return bad() ? -1 : FileSystem::sync_folder(path); }
    int rename(const std::string& from, const std::string& to) override {
        return bad() ? -1 : FileSystem::rename(from, to);
    }
    int exchange(const std::string& a, const std::string& b) override {
        return bad() ? -1 : FileSystem::exchange(a, b);
    }
    int remove_folder(const std::string& path) override {
        return bad() ? -1 : FileSystem::remove_folder(path);
    }

  private:
    bool bad() {
        if (left_-- > 0) return false;
        met_ = true;
        if (crashes_) throw Crash();
        errno = ENOSPC;
        return true;
    }

    int left_;
    const bool crashes_;
    bool met_ = false;
};

// A model of two parameters with one kind of state, written by two ranks.
class CheckpointTest : public ::testing::Test {
  protected:
    static std::vector<CheckpointTensor> tensors() {
        return {{"master/a", {4, 6}}, {"adamw_m/a", {4, 6}}, {"master/b", {5}}};
    }
    static float value(int64_t step, size_t tensor, int64_t i) {
        return static_cast<float>(step * 1000 + static_cast<int64_t>(tensor) * 100 + i);
    }

    void save(FileSystem& system, int64_t step, int64_t keep = 2) {
        CheckpointInfo info;
        info.step = step;
        info.ranks = 2;
        info.config = "{}";
        info.tensors = tensors();
        for (const int64_t rank : {0, 1}) {
            std::vector<std::vector<float>> numbers;
            std::vector<StatePiece> pieces;
            for (size_t t = 0; t < info.tensors.size(); ++t) {
                const int64_t numel = info.tensors[t].numel(),
                              half = t == 2 ? numel : 14;  // rank 0 writes all of b
                const int64_t begin = rank == 0 ? 0 : half, end = rank == 0 ? half : numel;
                if (begin == end) continue;
                numbers.emplace_back();
                for (int64_t i = begin; i < end; ++i) numbers.back().push_back(value(step, t, i));
                pieces.push_back({info.tensors[t],
                                  {Box::of({begin, end - begin})},
                                  Tensor(nullptr, DType::f32, {end - begin})});
            }
            RankFileWriter writer(system, run_, {.step = step, .rank = rank}, pieces);
            while (const auto chunk = writer.next())
                writer.write(numbers[chunk->piece].data() + chunk->elements.begin);
            info.files.push_back(writer.finish());
        }
        commit_checkpoint(system, run_, info, keep);
    }

    // Reads a whole checkpoint with every check. Returns its step.
    static int64_t expect_good(const std::string& folder) {
        CheckpointReader reader(folder);
        for (const CheckpointFile& file : reader.info().files) reader.verify_file(file);
        reader.index();
        reader.expect_tensors(tensors());
        const int64_t step = reader.info().step;
        for (size_t t = 0; t < tensors().size(); ++t) {
            const CheckpointTensor tensor = tensors()[t];
            std::vector<float> numbers(static_cast<size_t>(tensor.numel()));
            reader.read(tensor.name, Box::of({0, tensor.numel()}), numbers.data());
            for (int64_t i = 0; i < tensor.numel(); ++i)
                EXPECT_EQ(numbers[i], value(step, t, i)) << tensor.name;
        }
        float some[6] = {};
        reader.read("adamw_m/a", Box::of({11, 6}), some);  // spans both ranks' pieces
        for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(some[i], value(step, 1, 11 + i));
        return step;
    }

    // Message of the data error, or "nothing".
    static std::string damage(const std::string& folder) {
        return error_of(ExitCode::data, [&] { expect_good(folder); });
    }

    std::string folder(int64_t step) const { return run_ + "/checkpoints/" + checkpoint_name(step); }
    static void put(const fs::path& path, const std::string& text) {
        std::ofstream(path, std::ios::binary) << text;
    }
    std::vector<int64_t> steps() const {
        std::vector<int64_t> result;
        for (const std::string& found : list_checkpoints(run_))
            result.push_back(step_of_checkpoint(fs::path(found).filename().string()));
        return result;
    }

    const TempDir dir_;
    const std::string run_ = dir_.path();
};

using Steps = std::vector<int64_t>;

TEST_F(CheckpointTest, NamesAreTheStepsOfCompleteOnes) {
    EXPECT_EQ(checkpoint_name(123), "step-00000123");
    EXPECT_EQ(step_of_checkpoint("step-00000123"), 123);
    EXPECT_EQ(step_of_checkpoint(checkpoint_name(1234567890123)), 1234567890123);
    for (const char* other : {"final", "step-", "step-12x", ".step-00000001.part", "step--1", "xstep-1"})
        EXPECT_EQ(step_of_checkpoint(other), -1) << other;
}

TEST_F(CheckpointTest, KeepsTheNewest) {
    for (const int64_t step : {3, 6, 9, 12}) save(real_file_system(), step);
    EXPECT_EQ(steps(), (Steps{12, 9}));
    EXPECT_EQ(expect_good(folder(12)), 12);
    EXPECT_EQ(expect_good(folder(9)), 9);
    // A run resumed from an earlier step replaces the damaged checkpoint at that step and keeps the one that it
    // started from.
    put(folder(12) + "/checkpoint.json", "{");
    save(real_file_system(), 10);
    EXPECT_EQ(steps(), (Steps{12, 10, 9}));
    save(real_file_system(), 12);
    EXPECT_EQ(steps(), (Steps{12, 10}));
    EXPECT_EQ(expect_good(folder(12)), 12);
}

// Without an atomic exchange of names, the damaged checkpoint is replaced in two calls.
TEST_F(CheckpointTest, ReplacesWithoutExchange) {
    class Simple final : public FileSystem {
        int exchange(const std::string&, const std::string&) override {
            errno = EINVAL;
            return -1;
        }
    } system;
    fs::create_directories(folder(12));
    save(system, 12);
    EXPECT_EQ(expect_good(folder(12)), 12);
    EXPECT_EQ(steps(), Steps{12});
}

// A flipped byte in any file is detected, and the file is named.
TEST_F(CheckpointTest, EveryFlippedByteIsFound) {
    save(real_file_system(), 5);
    for (const auto& entry : fs::directory_iterator(folder(5))) {
        const std::string name = entry.path().filename().string(), good = read_text(entry.path());
        const size_t stride = good.size() / 97 + 1;
        for (size_t at = 0; at < good.size(); at += stride) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ 0x10);
            put(entry.path(), bad);
            const std::string text = damage(folder(5));
            EXPECT_NE(text, "accepted") << name << " byte " << at;
            const bool names_it = text.find(name) != std::string::npos;
            EXPECT_TRUE(names_it || name == "XXH128SUMS") << text;
        }
        put(entry.path(), good);
    }
    EXPECT_EQ(damage(folder(5)), "accepted");
}

// XXH128SUMS has two hashes per rank, independent of the number of tensors. A file next to each rank file has the
// hashes of its header and tensors, each over all bytes up to its end.
TEST_F(CheckpointTest, SumsOfTensorsLieBesideTheirFile) {
    save(real_file_system(), 5);
    EXPECT_EQ(read_sums(folder(5) + "/XXH128SUMS").size(), 2u * 2 + 1);
    EXPECT_EQ(read_text(folder(5) + "/checkpoint.json").find(tensors()[0].name + "["), std::string::npos);
    const CheckpointReader reader(folder(5));
    for (const CheckpointFile& file : reader.info().files) {
        const auto sums = read_sums(folder(5) + "/" + sums_file_name(file.name));
        const std::string path = folder(5) + "/" + file.name, bytes = read_text(path);
        const std::vector<TensorEntry> stored = read_safetensors_entries(path);
        const auto sum_until = [&](int64_t end) {
            Xxh128 hash;
            hash.update(bytes.data(), static_cast<size_t>(end));
            return hash.hex();
        };
        ASSERT_EQ(sums.size(), 1 + stored.size());
        EXPECT_EQ(sums.at("header"), sum_until(stored.front().begin));
        for (const TensorEntry& tensor : stored)
            EXPECT_EQ(sums.at(tensor.name), sum_until(tensor.begin + tensor.bytes)) << tensor.name;
        EXPECT_EQ(sums.at(stored.back().name), file.xxh128);
    }
}

TEST_F(CheckpointTest, SaysWhatIsDamaged) {
    save(real_file_system(), 5);
    const fs::path first = folder(5) + "/rank-00000.safetensors",
                   second = folder(5) + "/rank-00001.safetensors";
    const std::string good = read_text(second);
    const auto expect_text = [&](const std::vector<std::string>& texts) {
        const std::string actual = damage(folder(5));
        for (const std::string& text : texts) EXPECT_THAT(actual, HasSubstr(text));
    };
    std::string bad = good;
    bad[bad.size() - 1] ^= 1;
    put(second, bad);
    expect_text({second.string(), "XXH128 is", "expected", "damaged is tensor adamw_m/a[14:24], bytes",
                 "to " + std::to_string(good.size())});
    bad = good;
    bad[bad.find("\"F32\"") - 9] ^= 1;  // in the key "dtype"
    put(second, bad);
    expect_text({second.string(), "XXH128 is"});
    bad = good;
    bad.replace(bad.find("[14:24]"), 7, "[14:23]");  // a different range in the header
    put(second, bad);
    expect_text({second.string(), "XXH128 is", "damaged is the header, bytes 0 to"});
    put(second, good.substr(0, good.size() - 3));
    expect_text({second.string(), "has " + std::to_string(good.size() - 3) + " bytes, expected " +
                                      std::to_string(good.size())});
    fs::remove(second);
    expect_text({second.string(), "No such file"});
    put(second, good);
    fs::rename(folder(5) + "/XXH128SUMS", folder(5) + "/SHA256SUMS");
    expect_text({"version 1 or 2, this program reads version 3; continue it with the program that wrote it"});
    fs::remove(folder(5) + "/SHA256SUMS");
    expect_text({"XXH128SUMS: cannot be read"});
}

// checkpoint.json with a correct hash and values that are no valid counts.
TEST_F(CheckpointTest, NumbersThatAreNoneAreErrors) {
    using Json = nlohmann::json;
    save(real_file_system(), 5);
    const std::string path = folder(5) + "/checkpoint.json", sums_path = folder(5) + "/XXH128SUMS";
    const std::string good = read_text(path), good_hash = xxh128_file(path), sums = read_text(sums_path);
    const auto damage_of = [&](const std::string& text) {
        put(path, text);
        std::string changed = sums;
        changed.replace(changed.find(good_hash), good_hash.size(), xxh128_file(path));
        put(sums_path, changed);
        return damage(folder(5));
    };
    const std::vector<Json> bad = {9.2e19, -9.3e18, 1e300, 5.5, "5", nullptr, Json::array(), UINT64_MAX};
    for (const char* key : {"/step", "/tokens", "/loader/next_row", "/seed", "/ranks", "/format_version",
                            "/files/0/bytes", "/tensors/0/shape/1"}) {
        for (const Json& value : bad) {
            Json json = Json::parse(good);
            json[Json::json_pointer(key)] = value;
            const std::string text = damage_of(json.dump());
            EXPECT_THAT(text, HasSubstr(path + ": expected a whole number, got ")) << key << text;
        }
    }
    Json json = Json::parse(good);
    json["step"] = -5;
    EXPECT_THAT(damage_of(json.dump()), HasSubstr("not below 0, got -5"));
    json = Json::parse(good);
    json["tensors"][0]["shape"] = {1LL << 40, 1LL << 40};
    EXPECT_THAT(damage_of(json.dump()), HasSubstr("no tensor has the shape [1099511627776,1099511627776]"));
    EXPECT_THAT(damage_of(std::string(1'000'000, '[')), HasSubstr("nested deeper than 64"));
    json = Json::parse(good);
    json["step"] = 5.0;  // other JSON writers may store 5 as 5.0
    EXPECT_EQ(damage_of(json.dump()), "accepted");
}

// Files with correct hashes, but of another model.
TEST_F(CheckpointTest, MissingTensorAndOtherShapeAreErrors) {
    save(real_file_system(), 5);
    CheckpointReader reader(folder(5));
    reader.index();
    const auto problem = [](const std::function<void()>& check) -> std::string {
        return error_of(ExitCode::data, [&] { check(); });
    };
    auto expected = tensors();
    expected[0].shape = {6, 4};
    expected[2].name = "master/c";
    const std::string text = problem([&] { reader.expect_tensors(expected); });
    for (const char* part :
         {"master/a is [4,6], expected [6,4]", "missing tensor master/c", "unknown tensor master/b"})
        EXPECT_THAT(text, HasSubstr(part));

    // The second rank's file with a tensor missing, then with a truncated tensor.
    const std::string path = folder(5) + "/rank-00001.safetensors";
    const std::vector<NamedTensor> all = read_safetensors(path);
    write_safetensors(path, {all[0]});
    EXPECT_THAT(problem([&] { reader.index(); }),
                HasSubstr("missing tensor adamw_m/a [4,6]: the files hold 14 of 24 numbers in a row"));
    NamedTensor shorter = all[1];
    shorter.shape = {9};
    shorter.bytes.resize(9 * sizeof(float));
    write_safetensors(path, {all[0], shorter});
    EXPECT_THAT(problem([&] { reader.index(); }),
                HasSubstr("expected 10 numbers (f32) of tensor adamw_m/a [4,6]"));
}

// The process is killed, or the disk is full, at any call. Each remaining checkpoint is good and the newest complete
// one is kept. The next save succeeds and removes temporary files.
TEST_F(CheckpointTest, WheneverItStopsThereIsAGoodOne) {
    for (const bool crashes : {true, false}) {
        int calls = 0;
        for (bool stopped = true; stopped; ++calls) {
            fs::remove_all(run_ + "/checkpoints");
            for (const int64_t step : {3, 6}) save(real_file_system(), step);
            fs::create_directories(folder(12));  // a damaged checkpoint at a later step of the run
            BadFileSystem bad(calls, crashes);
            try {
                save(bad, 9);
                save(bad, 12);
            } catch (const Crash&) {
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), ExitCode::failure);
                EXPECT_THAT(error.what(), HasSubstr(run_));
                EXPECT_THAT(error.what(), HasSubstr("No space left"));
            }
            stopped = bad.met();
            int64_t newest = -1;
            for (const int64_t step : steps()) {
                if (step == 12 && !fs::exists(folder(12) + "/checkpoint.json"))
                    continue;  // still the damaged one
                EXPECT_EQ(expect_good(folder(step)), step) << "after " << calls << " calls";
                newest = std::max(newest, step);
            }
            EXPECT_GE(newest, 6) << "after " << calls << " calls";
            EXPECT_TRUE(stopped || newest == 12) << newest;
            remove_unfinished(real_file_system(), run_);
            save(real_file_system(), 12);
            EXPECT_EQ(expect_good(folder(12)), 12);
            for (const auto& entry : fs::directory_iterator(run_ + "/checkpoints"))
                EXPECT_NE(entry.path().filename().string().front(), '.') << "after " << calls << " calls";
        }
        EXPECT_GT(calls, 40) << "the saves make more calls than that";
    }
}

}  // namespace speedrun::checkpoint_test
