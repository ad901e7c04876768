#include "train/fields/field_texts.h"

#include <fmt/ranges.h>

namespace speedrun {

namespace {

class TextWriter final : public FieldVisitor {
  public:
    std::vector<FieldText> texts;

    void field(const char* name, int64_t& value, const char*, Limits) override { add(name, value); }
    void field(const char* name, double& value, const char*, Limits) override { add(name, value); }
    void field(const char* name, std::optional<double>& value, const char*, Limits) override {
        add(name, value ? fmt::format("{}", *value) : "null");
    }
    void field(const char* name, Scheduled<int64_t>& value, const char*, Limits) override {
        add(name, entries(value));
    }
    void field(const char* name, Scheduled<double>& value, const char*, Limits) override {
        add(name, entries(value));
    }
    void field(const char* name, std::vector<Scheduled<double>>& value, const char*, Limits) override {
        std::vector<std::string> all;
        for (const Scheduled<double>& one : value) all.push_back(entries(one));
        add(name, all);
    }
    void field(const char* name, std::vector<int64_t>& value, const char*, Limits) override {
        add(name, value);
    }
    void field(const char* name, bool& value, const char*) override { add(name, value); }
    void field(const char* name, std::string& value, const char*) override { add(name, value); }
    void field(const char* name, std::vector<std::string>& value, const char*) override { add(name, value); }
    void section(const char* name, const char*, const Fields&) override { nested(name); }
    std::vector<std::string> own_keys(const std::vector<std::string>&) override { nested("keys"); }
    void list(const char* name, const char*, size_t, const std::function<void(size_t)>&,
              const std::function<void(size_t, FieldVisitor&)>&) override {
        nested(name);
    }

  private:
    void one_of(const char* name, std::string& word, const std::vector<std::string>&, const char*) override {
        add(name, word);
    }
    void optional_section(const char* name, bool&, const char*, const Fields&) override { nested(name); }

    template <class T>
    static std::string entries(const Scheduled<T>& value) {
        if (value.is_number()) return fmt::format("{}", value.entries().front().from);
        std::string text;
        for (const auto& entry : value.entries())
            text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", entry.from, entry.to);
        return "[" + text + "]";
    }
    template <class T>
    void add(const char* name, const T& value) {
        texts.push_back({name, fmt::format("{}", value)});
    }
    [[noreturn]] static void nested(const char* name) { throw_internal("field {} has fields", name); }
};

}  // namespace

std::vector<FieldText> field_texts(const FieldVisitor::Fields& fields) {
    TextWriter writer;
    fields(writer);
    return std::move(writer.texts);
}

}  // namespace speedrun
