// Options that are one word of a list: an enumerator in the program, a word of a table in text. A word outside the table
// has no value, so it reaches no branch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/dtype.h"
#include "kernels/device/error.h"

namespace speedrun {

template <class E>
struct Word {
    const char* text;
    E value;
};

// The words of a type of choice, in the order of lists; specialised once for each type.
template <class E>
extern const Word<E> kWords[];

template <class E>
std::vector<std::string> words_of() {
    std::vector<std::string> words;
    for (const Word<E>& word : kWords<E>) words.emplace_back(word.text);
    return words;
}

// Returns the word of a value. Throws an internal error if there is none.
template <class E>
const char* word_of(const E& value) {
    for (const Word<E>& word : kWords<E>)
        if (word.value == value) return word.text;
    throw_internal("a choice has no word");
}

// Returns null if the table lacks the word.
template <class E>
const Word<E>* find_word(std::string_view text) {
    for (const Word<E>& word : kWords<E>)
        if (text == word.text) return &word;
    return nullptr;
}

// Returns the value of a word. Throws a usage error with all words if the table lacks it.
template <class E>
E choice_of(std::string_view text) {
    if (const Word<E>* word = find_word<E>(text)) return word->value;
    std::string all;
    for (const Word<E>& word : kWords<E>) all += (all.empty() ? "" : ", ") + std::string(word.text);
    throw_usage("'{}' is none of {}", text, all);
}

// Types of stored and sent numbers.
template <>
inline constexpr Word<DType> kWords<DType>[] = {{"f32", DType::f32}, {"bf16", DType::bf16}};

}  // namespace speedrun
