// One declaration of an option: its name, default, range and documentation are given once, in the section's
// fields(), and reading JSON, writing the resolved config and printing the help all follow from it.
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
    // The limits are those of each number in it.
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
    // An option that is gone. Resolved configs of older builds, records' among them, may still name it with
    // the value that left it off, which is read and forgotten; nothing writes or documents it.
    virtual void retired(const char* /*name*/, int64_t /*off*/) {}
    // A key that another choice has no use for; instead: what to say in its place.
    virtual void refused(const char* /*name*/, const char* /*instead*/) {}
    // A nested object.
    virtual void section(const char* name, const char* doc, const Fields& fields) = 0;
    // One that may be left out: null.
    template <class T>
    void optional(const char* name, std::optional<T>& value, const char* doc) {
        bool present = value.has_value();
        T inner = value.value_or(T{});
        optional_section(name, present, doc, [&inner](FieldVisitor& v) { inner.fields(v); });
        value = present ? std::optional<T>(std::move(inner)) : std::nullopt;
    }
    // The keys of the object at hand, which are of the user's choosing. known: those there are, which a reader
    // replaces.
    virtual std::vector<std::string> own_keys(const std::vector<std::string>& known) = 0;
    // Does it want all fields there are, also those that the values of others make meaningless?
    virtual bool wants_all() const { return false; }
    // A list of objects; resize(n) makes the list n long, element(i) visits its fields.
    virtual void list(const char* name, const char* doc, size_t size,
                      const std::function<void(size_t)>& resize,
                      const std::function<void(size_t, FieldVisitor&)>& element) = 0;

  protected:
    // A word out of a list. Whoever changes it leaves one of them there.
    virtual void one_of(const char* name, std::string& word, const std::vector<std::string>& words,
                        const char* doc) = 0;
    virtual void optional_section(const char* name, bool& present, const char* doc, const Fields& fields) = 0;
};

// Reads an object whose keys are the user's own: its values in the order of the keys. What stood under a key is what
// visit(key, value) begins with, T{} for a key that is new.
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
