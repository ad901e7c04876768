// Helpers of the data tests: a temporary folder, small files, and checks of what an error says.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "data/shard.h"
#include "kernels/device/error.h"

namespace speedrun {

// A folder that exists as long as the object.
class TempDir {
  public:
    TempDir() : path_((std::filesystem::temp_directory_path() / "speedrun_test_XXXXXX").string()) {
        if (::mkdtemp(path_.data()) == nullptr) throw_internal("mkdtemp {}", path_);
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ + "/" + name; }

    std::string write(const std::string& name, std::string_view content) const {
        std::ofstream(file(name), std::ios::binary) << content;
        return file(name);
    }
    std::string write_tokens(const std::string& name, const std::vector<uint16_t>& tokens) const {
        write_shard(file(name), tokens);
        return file(name);
    }

  private:
    std::string path_;
};

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// first, first+1, … : tokens that tell their own place.
inline std::vector<uint16_t> counting_tokens(int count, int first = 0) {
    std::vector<uint16_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), static_cast<uint16_t>(first));
    return tokens;
}

// Expects that `action` throws an Error with this code whose message contains all the parts.
template <class Action>
void expect_error(ExitCode code, std::initializer_list<std::string> parts, Action&& action) {
    try {
        action();
        ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        for (const std::string& part : parts) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
                << "'" << part << "' is not in: " << error.what();
        }
    }
}

}  // namespace speedrun
