#include "train/config/config_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "train/config/config.h"

namespace speedrun {

namespace {

struct OptionHelp {
    std::string key, value, meaning;  // dotted; JSON of the default; may be empty
};

using Seen = std::map<std::string, std::string>;  // content of a section -> its key

// Lists the visited options. A section of at least five options that repeats an earlier one is one line.
class OptionLister final : public FieldVisitor {
  public:
    std::vector<OptionHelp> options;

    explicit OptionLister(std::string prefix = "", Seen* seen = nullptr)
        : prefix_(std::move(prefix)), seen_(seen ? *seen : own_seen_) {}

    void field(const char* name, int64_t& value, const char* doc, Limits) override { add(name, value, doc); }
    void field(const char* name, double& value, const char* doc, Limits) override { add(name, value, doc); }
    void field(const char* name, std::optional<double>& value, const char* doc, Limits) override {
        add(name, value ? nlohmann::json(*value) : nlohmann::json(), doc);
    }
    void field(const char* name, bool& value, const char* doc) override { add(name, value, doc); }
    void field(const char* name, std::string& value, const char* doc) override { add(name, value, doc); }
    void field(const char* name, std::vector<int64_t>& value, const char* doc, Limits) override {
        add(name, value, doc);
    }
    void field(const char* name, std::vector<std::string>& value, const char* doc) override {
        add(name, value, doc);
    }
    void field(const char* name, Scheduled<int64_t>& value, const char* doc, Limits) override {
        add(name, value.in(0).from, std::string(doc) + kByStage);
    }
    void field(const char* name, Scheduled<double>& value, const char* doc, Limits) override {
        add(name, value.in(0).from, std::string(doc) + kByStage);
    }
    void field(const char* name, std::vector<Scheduled<double>>& value, const char* doc, Limits) override {
        std::vector<double> first;
        for (const Scheduled<double>& one : value) first.push_back(one.in(0).from);
        add(name, first, std::string(doc) + " (each may be a list: by stage)");
    }
    void one_of(const char* name, std::string& value, const std::vector<std::string>& choices,
                const char* doc) override {
        add(name, value, fmt::format("{} ({})", doc, fmt::join(choices, "|")));
    }
    void section(const char* name, const char* doc, const Fields& fields) override {
        add_section({name, "", doc}, fields);
    }
    void optional_section(const char* name, bool& present, const char* doc, const Fields& fields) override {
        add_section({name, present ? "{...}" : "null", doc}, fields);
    }
    std::vector<std::string> own_keys(const std::vector<std::string>&) override { return {"NAME"}; }
    void list(const char* name, const char* doc, size_t, const std::function<void(size_t)>& resize,
              const std::function<void(size_t, FieldVisitor&)>& element) override {
        options.push_back({prefix_ + name, "[]", doc});
        resize(1);
        add_section({fmt::format("{}[i]", name), "", ""}, [&](FieldVisitor& inner) { element(0, inner); });
    }

    void strings_or_list(const char* name, std::vector<std::string>& strings, const char* doc, size_t,
                         const std::function<void(size_t)>& resize,
                         const std::function<void(size_t, FieldVisitor&)>& element) override {
        field(name, strings, doc);
        resize(1);
        add_section({fmt::format("{}[i]", name), "", ""}, [&](FieldVisitor& inner) { element(0, inner); });
    }

  private:
    static constexpr const char* kByStage = " (or a list: by stage)";

    // section.key: its name.
    void add_section(OptionHelp section, const Fields& fields) {
        constexpr size_t kMin = 5;
        section.key = prefix_ + section.key;
        OptionLister inner(section.key + ".", &seen_);
        fields(inner);
        std::string content;
        for (const OptionHelp& option : inner.options)
            content +=
                option.key.substr(section.key.size()) + " " + option.value + " " + option.meaning + "\n";
        const auto [first, is_new] = seen_.try_emplace(content, section.key);
        const bool repeats = !is_new && inner.options.size() >= kMin;
        if (repeats)
            section.meaning +=
                fmt::format("{}the options of {}", section.meaning.empty() ? "" : "; ", first->second);
        if (repeats && section.value.empty()) section.value = "{...}";
        if (!section.value.empty()) options.push_back(section);
        if (!repeats) options.insert(options.end(), inner.options.begin(), inner.options.end());
    }
    void add(const char* name, const nlohmann::json& value, const std::string& meaning) {
        const std::string key = prefix_ + name;
        const auto same = std::find_if(options.begin(), options.end(),
                                       [&](const OptionHelp& option) { return option.key == key; });
        if (same == options.end())
            options.push_back({key, value.dump(), meaning});
        else  // an option of several optimizers
            same->meaning += "; " + meaning;
    }

    const std::string prefix_;
    Seen own_seen_;
    Seen& seen_;
};

std::vector<OptionHelp> all_options() {
    Config config;
    OptionLister lister;
    config.fields(lister);
    return lister.options;
}

// Returns the section of a key. The sections of `model` are pages of their own: "model_layers".
std::string page_of(const std::string& key) {
    const size_t dot = key.find('.');
    if (dot == std::string::npos) return "general";
    const size_t end = key.find_first_of(".[", dot + 1);
    const std::string section = key.substr(0, dot);
    return section == "model" && end != std::string::npos ? "model_" + key.substr(dot + 1, end - dot - 1)
                                                          : section;
}

std::string cell(std::string text) {  // escapes text for a Markdown table
    for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
    return text;
}

}  // namespace

std::string describe_options() {
    std::string text;
    for (const OptionHelp& option : all_options())
        text += fmt::format("  {:<42} {:<14} {}\n", option.key, option.value, option.meaning);
    return text;
}

std::vector<std::pair<std::string, std::string>> option_pages() {
    std::vector<std::pair<std::string, std::string>> pages;
    for (const OptionHelp& option : all_options()) {
        const std::string section = page_of(option.key), file = section + ".md";
        auto page =
            std::find_if(pages.begin(), pages.end(), [&](const auto& one) { return one.first == file; });
        if (page == pages.end())
            page = pages.insert(
                pages.end(),
                {file, fmt::format("# Options: {}\n| key | default | meaning |\n|---|---|---|\n", section)});
        page->second += fmt::format("| `{}` | `{}` | {} |\n", option.key, option.value, cell(option.meaning));
    }
    return pages;
}

}  // namespace speedrun
