// Committed tables that a compile gate compares kernels with, one line per kernel.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace speedrun::testing {

// Compares the first `columns` characters of all lines, in any order. If the environment variable `renew` is set, writes
// the file instead and skips the test. Also skips if the first line of the file, which names the compiler, differs from
// the table's.
inline void compare_with_committed(const std::string& path, const std::string& table, const char* renew,
                                   size_t columns = std::string::npos) {
    if (std::getenv(renew)) {
        std::ofstream file(path);
        file << table;
        file.close();
        ASSERT_TRUE(file) << "cannot write " << path;
        GTEST_SKIP() << "wrote " << path;
    }
    std::ifstream file(path);
    ASSERT_TRUE(file) << path;
    std::stringstream committed;
    committed << file.rdbuf();
    const std::string compiler = table.substr(0, table.find('\n') + 1);
    if (committed.str().rfind(compiler, 0) != 0)
        GTEST_SKIP() << path << " was made by another compiler than " << compiler;
    std::istringstream expected(committed.str()), actual(table);
    std::set<std::string> missing, extra;
    for (std::string line; std::getline(expected, line);) missing.insert(line.substr(0, columns));
    for (std::string line; std::getline(actual, line);)
        if (missing.erase(line.substr(0, columns)) == 0) extra.insert(line.substr(0, columns));
    std::string difference;
    for (const std::string& line : missing) difference += "- " + line + "\n";
    for (const std::string& line : extra) difference += "+ " + line + "\n";
    if (!difference.empty())
        ADD_FAILURE() << path << " (-) and this build (+) differ:\n"
                      << difference << "If that is meant, renew the table: " << renew << "=1 and this test.";
}

}  // namespace speedrun::testing
