#include "train/config/config_help.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace speedrun::config_help_test {

// Keys of sections, lists and words.
TEST(ConfigHelpTest, HelpNamesTheOptions) {
    const std::string help = describe_options();
    for (const char* key : {"model.layers.count", "batch.tokens_per_step", "optimizers.groups[i].lr",
                            "schedule.steps", "seed", "model.preset", "(none|gpt2|modern)"}) {
        EXPECT_NE(help.find(key), std::string::npos) << key;
    }
}

// Every option is on one page, in a table of three columns.
TEST(ConfigHelpTest, PagesHaveTheOptionsOfTheHelp) {
    std::vector<std::string> files;
    std::istringstream help(describe_options());
    std::string text;
    for (const auto& [file, page] : option_pages()) {
        files.push_back(file);
        text += page;
        std::istringstream lines(page);
        for (std::string line; std::getline(lines, line);)
            if (line.starts_with('|')) {
                size_t bars = 0;
                for (size_t i = 0; i < line.size(); ++i)
                    bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
                EXPECT_EQ(bars, 4u) << line;
            }
    }
    for (std::string line, key; std::getline(help, line);) {
        std::istringstream(line) >> key;
        const size_t at = text.find("| `" + key + "` |");
        EXPECT_NE(at, std::string::npos) << key;
        EXPECT_EQ(text.find("| `" + key + "` |", at + 1), std::string::npos) << key;
    }
    EXPECT_EQ(files[0], "model.md");
    EXPECT_NE(std::find(files.begin(), files.end(), "general.md"), files.end());
}

}  // namespace speedrun::config_help_test
