// Declaration of an option. The fields() of a section declares name, variable, documentation and range once. Readers and
// writers of JSON, the help and the schema are visitors of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/fields/choice.h"
#include "train/fields/scheduled.h"

namespace speedrun {

struct Limits {
    double low = 0;
    double high = std::numeric_limits<double>::infinity();
};

class FieldVisitor {
  public:
    using Fields = std::function<void(FieldVisitor&)>;

    virtual ~FieldVisitor() = default;
    virtual void field(const char* name, int64_t& value, const char* doc, Limits limits = {}) = 0;
    virtual void field(const char* name, double& value, const char* doc, Limits limits = {}) = 0;
    // Null: none.
    virtual void field(const char* name, std::optional<double>& value, const char* doc,
                       Limits limits = {}) = 0;
    // The limits apply to each number.
    virtual void field(const char* name, Scheduled<int64_t>& value, const char* doc, Limits limits = {}) = 0;
    virtual void field(const char* name, Scheduled<double>& value, const char* doc, Limits limits = {}) = 0;
    virtual void field(const char* name, std::vector<Scheduled<double>>& value, const char* doc,
                       Limits limits = {}) = 0;
    virtual void field(const char* name, std::vector<int64_t>& value, const char* doc,
                       Limits limits = {}) = 0;
    virtual void field(const char* name, bool& value, const char* doc) = 0;
    virtual void field(const char* name, std::string& value, const char* doc) = 0;
    virtual void field(const char* name, std::vector<std::string>& value, const char* doc) = 0;
    template <class E>
    void choice(const char* name, E& value, const char* doc) {
        std::string word = word_of(value);
        one_of(name, word, words_of<E>(), doc);
        value = choice_of<E>(word);
    }
    // A removed option. Configs of older builds and records may name it with `off`, JSON text of the value without effect.
    // Any other value is an error with the reason.
    struct Retired {
        const char *off, *why;
    };
    virtual void retired(const char* /*name*/, const Retired& /*removed*/) {}
    // A removed key, an error; instead: its new form.
    virtual void refused(const char* /*name*/, const char* /*instead*/) {}
    // A nested object.
    virtual void section(const char* name, const char* doc, const Fields& fields) = 0;
    // An optional object; null if it is absent.
    template <class T>
    void optional(const char* name, std::optional<T>& value, const char* doc) {
        bool present = value.has_value();
        T inner = value.value_or(T{});
        optional_section(name, present, doc, [&inner](FieldVisitor& v) { inner.fields(v); });
        value = present ? std::optional<T>(std::move(inner)) : std::nullopt;
    }
    // The keys of the current object, chosen by the user. known: the present keys, which a reader replaces.
    virtual std::vector<std::string> own_keys(const std::vector<std::string>& known) = 0;
    // A list of objects; resize(n) makes the list n long, element(i) visits its fields.
    virtual void list(const char* name, const char* doc, size_t size,
                      const std::function<void(size_t)>& resize,
                      const std::function<void(size_t, FieldVisitor&)>& element) = 0;

    // A list of T.
    template <class T>
    void objects(const char* name, std::vector<T>& values, const char* doc) {
        list(
            name, doc, values.size(), [&](size_t n) { values.assign(n, T{}); },
            [&](size_t i, FieldVisitor& v) { values[i].fields(v); });
    }

    // A list of strings, or a list of T.
    template <class T>
    void strings_or_objects(const char* name, std::vector<std::string>& strings, std::vector<T>& values,
                            const char* doc) {
        strings_or_list(
            name, strings, doc, values.size(), [&](size_t n) { values.assign(n, T{}); },
            [&](size_t i, FieldVisitor& v) { values[i].fields(v); });
    }

    // One word of a list. A visitor that changes it writes a word of the list.
    virtual void one_of(const char* name, std::string& word, const std::vector<std::string>& words,
                        const char* doc) = 0;

  protected:
    // As field() if the list has size 0, else as list().
    virtual void strings_or_list(const char* name, std::vector<std::string>& strings, const char* doc,
                                 size_t size, const std::function<void(size_t)>& resize,
                                 const std::function<void(size_t, FieldVisitor&)>& element) {
        size == 0 ? field(name, strings, doc) : list(name, doc, size, resize, element);
    }
    virtual void optional_section(const char* name, bool& present, const char* doc, const Fields& fields) = 0;
};

// Reads an object with keys chosen by the user: its values in the order of the keys. visit(key, value) starts from the
// present value of the key, or from T{} for a new key.
template <class T>
void read_own(FieldVisitor& v, std::vector<std::pair<std::string, T>>& values,
              const std::function<void(const std::string&, T&)>& visit) {
    std::vector<std::string> known;
    for (const auto& [name, value] : values) known.push_back(name);
    std::vector<std::pair<std::string, T>> read;
    for (const std::string& key : v.own_keys(known)) {
        const auto found =
            std::find_if(values.begin(), values.end(), [&](const auto& entry) { return entry.first == key; });
        read.emplace_back(key, found == values.end() ? T{} : found->second);
        visit(key, read.back().second);
    }
    values = std::move(read);
}

}  // namespace speedrun
