// A safetensors file that a stranger made: whatever its header says is read as it says, or refused with the file's name.
#include "train/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "tests/data/test_files.h"
#include "tests/temp_dir.h"

namespace speedrun {

namespace safetensors_test {

// A file with this header and 64 bytes of data.
std::string written(const TempDir& dir, const std::string& header) {
    const uint64_t length = header.size();
    return dir.write("a.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) +
                                          header + std::string(64, '\1'));
}

std::string with_shape(const std::string& shape) {
    return R"({"a": {"dtype": "F32", "shape": )" + shape + R"(, "data_offsets": [0, 64]}})";
}

TEST(SafetensorsTest, ReadsWhatItSays) {
    const TempDir dir;
    const std::vector<NamedTensor> tensors = read_safetensors(written(dir, with_shape("[4, 4]")));
    ASSERT_EQ(tensors.size(), 1u);
    EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{4, 4}));
    EXPECT_EQ(tensors[0].bytes, std::vector<char>(64, '\1'));
}

// Found by fuzzing: JSON's numbers reach beyond 64 bits, and a number that no integer holds has no defined conversion.
TEST(SafetensorsTest, NumbersThatAreNoSizesAreRefused) {
    const TempDir dir;
    // The first would be the file's 64 bytes, were it cut to a whole number.
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

// Values are destroyed by recursion: without a limit this ends the stack.
TEST(SafetensorsTest, NestingHasALimit) {
    const TempDir dir;
    expect_error(ExitCode::data, {"a.safetensors", "nested deeper"},
                 [&] { read_safetensors(written(dir, std::string(1 << 20, '['))); });
}

}  // namespace safetensors_test

}  // namespace speedrun
