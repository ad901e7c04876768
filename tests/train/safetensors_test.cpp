// Foreign safetensors files: any header is read correctly or refused with the file's name.
#include "train/checkpoint/safetensors.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "tests/data/test_files.h"

namespace speedrun::safetensors_test {

// Writes a file with this header and 64 bytes of data.
std::string written(const TempDir& dir, const std::string& header) {
    const uint64_t length = header.size();
    return dir.write("a.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) +
                                          header + std::string(64, '\1'));
}

std::string with_shape(const std::string& shape) {
    return R"({"a": {"dtype": "F32", "shape": )" + shape + R"(, "data_offsets": [0, 64]}})";
}

TEST(SafetensorsTest, ReadsTensor) {
    const TempDir dir;
    const std::vector<NamedTensor> tensors = read_safetensors(written(dir, with_shape("[4, 4]")));
    ASSERT_EQ(tensors.size(), 1u);
    EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{4, 4}));
    EXPECT_EQ(tensors[0].bytes, std::vector<char>(64, '\1'));
}

// Found by fuzzing: JSON numbers exceed 64 bits, and converting an out-of-range double to an integer is undefined.
TEST(SafetensorsTest, RejectsInvalidSizes) {
    const TempDir dir;
    // Truncated to 16, the first shape would match the 64 bytes of data.
    for (const char* shape :
         {"[16.5]", "[9232372036854723720368, 16]", "[1e300]", "[-1e300]", "[18446744073709551615]", "[4.5]",
          "[true]", "[\"4\"]", "[null]", "16", "{\"4\": 4}", "[-4, -4]", "[4, 4, 4]"}) {
        SCOPED_TRACE(shape);
        expect_error(ExitCode::data, {"a.safetensors", "tensor a"},
                     [&] { read_safetensors(written(dir, with_shape(shape))); });
    }
    expect_error(ExitCode::data, {"a.safetensors", "tensor a", "1e+30"}, [&] {
        read_safetensors(
            written(dir, R"({"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 1e30]}})"));
    });
}

// IEEE binary16: a normal value, the largest, the smallest subnormal, -0, infinity. Entries for partial reads refuse it.
TEST(SafetensorsTest, WidensF16) {
    const TempDir dir;
    const std::string header = R"({"a": {"dtype": "F16", "shape": [6], "data_offsets": [0, 12]}})";
    const uint64_t length = header.size();
    const uint16_t halves[] = {0xbe00, 0x7bff, 0x0001, 0x8000, 0x7c00, 0x03ff};
    std::string text(reinterpret_cast<const char*>(&length), sizeof length);
    text += header;
    text.append(reinterpret_cast<const char*>(halves), sizeof halves);
    const std::string path = dir.write("a.safetensors", text);
    const std::vector<NamedTensor> tensors = read_safetensors(path);
    ASSERT_EQ(tensors.size(), 1u);
    ASSERT_EQ(tensors[0].dtype, DType::f32);
    std::vector<float> values(6);
    ASSERT_EQ(tensors[0].bytes.size(), values.size() * sizeof(float));
    std::memcpy(values.data(), tensors[0].bytes.data(), tensors[0].bytes.size());
    EXPECT_EQ(values, (std::vector<float>{-1.5f, 65504.0f, 0x1p-24f, -0.0f, INFINITY, 1023 * 0x1p-24f}));
    EXPECT_TRUE(std::signbit(values[3]));
    expect_error(ExitCode::data, {"tensor a: element type F16"}, [&] { read_safetensors_entries(path); });
}

// JSON values are destroyed recursively: without a limit, deep nesting overflows the stack.
TEST(SafetensorsTest, LimitsNesting) {
    const TempDir dir;
    expect_error(ExitCode::data, {"a.safetensors", "nested deeper"},
                 [&] { read_safetensors(written(dir, std::string(1 << 20, '['))); });
}

// A sharded checkpoint has many tensors. Searching an ordered JSON object for each key would take 9 s here.
TEST(SafetensorsTest, ReadsManyTensorsInLinearTime) {
    const TempDir dir;
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < 60'000; ++i)
        tensors.push_back(
            {"tensor " + std::to_string(i), DType::f32, {1}, std::vector<char>(4, static_cast<char>(i))});
    const auto began = std::chrono::steady_clock::now();
    write_safetensors(dir.file("a.safetensors"), tensors);
    const std::vector<NamedTensor> read = read_safetensors(dir.file("a.safetensors"));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
    ASSERT_EQ(read.size(), tensors.size());
    EXPECT_EQ(read[59'999].name, "tensor 59999");
    EXPECT_EQ(read[59'999].bytes, tensors[59'999].bytes);
}

TEST(SafetensorsTest, RejectsDuplicateNamesAndNonFiles) {
    const TempDir dir;
    const std::string a = R"("a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]})";
    expect_error(ExitCode::data, {"a.safetensors", "duplicate key \"a\""},
                 [&] { read_safetensors(written(dir, "{" + a + "," + a + "}")); });
    for (const std::string& path : {dir.path(), std::string("/dev/zero")})
        expect_error(ExitCode::data, {path, "expected a regular file"}, [&] { read_safetensors(path); });
}

}  // namespace speedrun::safetensors_test
