// Options that are one word out of a list: in the program an enumerator, in text the word that a table has
// for it. A word that is not in the table becomes no value, so it reaches no branch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/error.h"

namespace speedrun {

template <class E>
struct Word {
    const char* text;
    E value;
};

// The words of a type of choice, in the order in which they are listed: specialised once for each type.
template <class E>
extern const Word<E> kWords[];

template <class E>
std::vector<std::string> words_of() {
    std::vector<std::string> words;
    for (const Word<E>& word : kWords<E>) words.emplace_back(word.text);
    return words;
}

// The word for a value. Throws an internal error if there is none.
template <class E>
const char* word_of(const E& value) {
    for (const Word<E>& word : kWords<E>)
        if (word.value == value) return word.text;
    throw_internal("a choice has no word");
}

// Null where no word of the table is this one.
template <class E>
const Word<E>* find_word(std::string_view text) {
    for (const Word<E>& word : kWords<E>)
        if (text == word.text) return &word;
    return nullptr;
}

// The value for a word. Throws a usage error that lists the words if this is none of them.
template <class E>
E choice_of(std::string_view text) {
    if (const Word<E>* word = find_word<E>(text)) return word->value;
    std::string all;
    for (const Word<E>& word : kWords<E>) all += (all.empty() ? "" : ", ") + std::string(word.text);
    throw_usage("'{}' is none of {}", text, all);
}

}  // namespace speedrun
