// Committed tables that a compile gate compares kernels with: sections of one file, which begin with "== NAME".
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace speedrun::testing {

inline const std::string kTables = SPEEDRUN_SOURCE_ROOT "/kernels/cuda/tables.txt";

// Returns the text of each section by its name.
inline std::map<std::string, std::string> committed_tables() {
    std::map<std::string, std::string> sections;
    std::ifstream file(kTables);
    EXPECT_TRUE(file) << kTables;
    std::string name;
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("== ", 0) == 0)
            name = line.substr(3);
        else
            sections[name] += line + "\n";
    }
    return sections;
}

// Compares the first `columns` characters of the lines of a table with the section. If the environment variable `renew` is set, replaces the section instead and skips the test.
// Also skips if the first line, which names the compiler, differs.
inline void compare_with_committed(const std::string& section, const std::string& table, const char* renew,
                                   size_t columns = std::string::npos) {
    std::map<std::string, std::string> tables = committed_tables();
    const std::string committed = std::exchange(tables[section], table);
    if (std::getenv(renew)) {
        std::ofstream file(kTables);
        for (const auto& [name, text] : tables) file << "== " << name << "\n" << text;
        file.close();
        ASSERT_TRUE(file) << "cannot write " << kTables;
        GTEST_SKIP() << "wrote section " << section << " of " << kTables;
    }
    const std::string compiler = table.substr(0, table.find('\n') + 1);
    if (committed.rfind(compiler, 0) != 0)
        GTEST_SKIP() << section << " of " << kTables << " was made by another compiler than " << compiler;
    if (committed == table) return;
    std::istringstream expected(committed), actual(table);
    std::multiset<std::string> missing, extra;
    for (std::string line; std::getline(expected, line);) missing.insert(line.substr(0, columns));
    for (std::string line; std::getline(actual, line);) {
        line = line.substr(0, columns);
        if (const auto at = missing.find(line); at != missing.end())
            missing.erase(at);
        else
            extra.insert(line);
    }
    if (missing.empty() && extra.empty() && columns != std::string::npos) return;
    std::string difference = missing.empty() && extra.empty() ? "the order of lines\n" : "";
    for (const std::string& line : missing) difference += "- " + line + "\n";
    for (const std::string& line : extra) difference += "+ " + line + "\n";
    ADD_FAILURE() << section << " of " << kTables << " (-) and this build (+) differ:\n"
                  << difference << "If that is meant, renew the table: " << renew << "=1 and this test.";
}

}  // namespace speedrun::testing
