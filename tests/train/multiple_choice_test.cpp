// Reading of items and counting of correct answers. tests/runs/multiple_choice_test.py checks the scores.
#include "train/commands/multiple_choice.h"

#include "tests/data/test_files.h"

namespace speedrun::multiple_choice_test {

TEST(MultipleChoiceTest, ReadsItemsAndNamesBadLines) {
    const TempDir dir;
    const std::string good = R"({"context": "a", "endings": ["b", "cc", "d"], "label": 2, "id": 7})";
    dir.write("items", good + "\r\n\n" + good);
    const std::vector<ChoiceItem> items = read_choice_items(dir.file("items"));
    ASSERT_EQ(items.size(), 2u);
    EXPECT_EQ(items[1].context, "a");
    EXPECT_EQ(items[1].endings, (std::vector<std::string>{"b", "cc", "d"}));
    EXPECT_EQ(items[1].label, 2);
    dir.write("items", good + "\n" + R"({"context": "a", "endings": ["b", "c"], "label": 1.5})");
    expect_error(ExitCode::data, {"items: line 2"}, [&] { read_choice_items(dir.file("items")); });
    dir.write("items", " \n");
    expect_error(ExitCode::data, {"no item"}, [&] { read_choice_items(dir.file("items")); });
}

TEST(MultipleChoiceTest, TheLengthOfAnEndingCountsOnlyInTheSum) {
    ChoiceResult result;
    // Means -2 and -1; sums -2 and -4.
    result.add({{.sum = -2, .tokens = 1}, {.sum = -4, .tokens = 4}}, 1);
    EXPECT_EQ(result.right, 1);
    EXPECT_EQ(result.right_by_sum, 0);
    result.add({{.sum = -2, .tokens = 1}, {.sum = -4, .tokens = 4}}, 0);
    EXPECT_DOUBLE_EQ(result.accuracy(), 0.5);
    EXPECT_DOUBLE_EQ(result.accuracy_by_sum(), 0.5);
    result.add({{.sum = -3, .tokens = 3}, {.sum = -3, .tokens = 3}},
               1);  // on a tie the first answer wins
    EXPECT_EQ(result.right, 1);
    EXPECT_EQ(result.items, 3);
}

}  // namespace speedrun::multiple_choice_test
