// Options with a fixed list of words.
#include "train/fields/choice.h"
#include "tests/errors.h"

#include <set>

#include "train/config/config.h"

namespace speedrun::testing::choice_test {

template <class E>
class WordsTest : public ::testing::Test {};
using Choices =
    ::testing::Types<NormKind, Activation, TableRows, TableExchange, NgramHash, InitKind, StreamPart,
                     SoftcapFunction, RowKind, Checkpointing, OptimizerKind, VectorNorm, Decay, Strategy,
                     DecayBy, NormuonLines, std::optional<Accumulate>, Launch, StepOrder, OptimizerStep,
                     std::optional<Reshard>, std::optional<CommunicatorKind>, std::optional<DeviceKind>,
                     DType, std::optional<DType>, Products, AttentionKind>;
TYPED_TEST_SUITE(WordsTest, Choices);

TYPED_TEST(WordsTest, EachWordIsOneValueAndBack) {
    std::set<std::string> words;
    for (const Word<TypeParam>& word : kWords<TypeParam>) {
        EXPECT_TRUE(choice_of<TypeParam>(word.text) == word.value) << word.text;
        EXPECT_STREQ(word_of(word.value), word.text) << "another word has this value";
        words.insert(word.text);
    }
    EXPECT_EQ(words.size(), words_of<TypeParam>().size());
}

TEST(ChoiceTest, OtherWordsAreRefusedWithTheList) {
    EXPECT_EQ(find_word<Strategy>("fsdp"), nullptr);
    EXPECT_EQ(error_of(ExitCode::usage, [] { choice_of<Strategy>("fsdp"); }),
              "'fsdp' is none of ddp, zero1, zero2, zero3");
}

// An enum value without a word in the list.
TEST(ChoiceTest, ValuesWithoutAWordAreRefused) {
    EXPECT_THROW(word_of(DType::i32), Error);
}

}  // namespace speedrun::testing::choice_test
