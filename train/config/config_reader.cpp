#include "train/config/config_reader.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/config/suggestion.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Fills the fields from one JSON object and records the known keys.
class Reader final : public FieldVisitor {
  public:
    Reader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
        if (!object.is_object())
            throw_usage("{}: an object {{…}} is expected, not {}", where(), shown(object));
    }
    // Call after visiting: throws a usage error for keys that no field has read.
    void reject_unknown() const {
        for (const auto& [key, value] : object_.items()) {
            if (!known_.count(key))
                throw_usage("{}: unknown key{}", dotted(shown_key<Json>(key)), suggestion(key, known_));
        }
    }

    void field(const char* name, int64_t& value, const char* doc, Limits limits) override {
        if (const Json* json = find(name)) number(name, *json, value, {doc, limits});
    }
    void field(const char* name, double& value, const char* doc, Limits limits) override {
        if (const Json* json = find(name)) number(name, *json, value, {doc, limits});
    }
    void field(const char* name, std::optional<double>& value, const char* doc, Limits limits) override {
        const Json* json = find(name);
        if (!json) return;
        value = json->is_null() ? std::nullopt : std::optional<double>(0);
        if (value) number(name, *json, *value, {doc, limits});
    }
    void field(const char* name, Scheduled<int64_t>& value, const char* doc, Limits limits) override {
        if (const Json* json = find(name)) scheduled(name, *json, value, {doc, limits});
    }
    void field(const char* name, Scheduled<double>& value, const char* doc, Limits limits) override {
        if (const Json* json = find(name)) scheduled(name, *json, value, {doc, limits});
    }
    void field(const char* name, std::vector<Scheduled<double>>& value, const char* doc,
               Limits limits) override {
        const Json* json = find(name);
        if (!json) return;
        if (!json->is_array()) wrong(name, "a list", *json, doc);
        value.assign(json->size(), 0.0);
        for (size_t i = 0; i < json->size(); ++i)
            scheduled(fmt::format("{}[{}]", name, i), (*json)[i], value[i], {doc, limits});
    }
    void field(const char* name, std::vector<int64_t>& value, const char* doc, Limits limits) override {
        const Json* json = find(name);
        if (!json) return;
        if (!json->is_array()) wrong(name, "a list of whole numbers", *json, doc);
        value.assign(json->size(), 0);
        for (size_t i = 0; i < json->size(); ++i)
            number(fmt::format("{}[{}]", name, i), (*json)[i], value[i], {doc, limits});
    }
    void field(const char* name, bool& value, const char* doc) override {
        const Json* json = find(name);
        if (!json) return;
        if (!json->is_boolean()) wrong(name, "true or false", *json, doc);
        value = json->get<bool>();
    }
    void field(const char* name, std::string& value, const char* doc) override {
        const Json* json = find(name);
        if (!json) return;
        if (json->is_number_integer()) {  // "shard": 8 as well as "shard": "auto"
            value = json->dump();
            return;
        }
        if (!json->is_string()) wrong(name, "a string", *json, doc);
        value = json->get<std::string>();
    }
    void field(const char* name, std::vector<std::string>& value, const char* doc) override {
        const Json* json = find(name);
        if (!json) return;
        const Json list = json->is_string() ? Json::array({*json}) : *json;
        const bool strings = list.is_array() && std::all_of(list.begin(), list.end(),
                                                            [](const Json& e) { return e.is_string(); });
        if (!strings) wrong(name, "a list of strings", *json, doc);
        value = list.get<std::vector<std::string>>();
    }
    void one_of(const char* name, std::string& value, const std::vector<std::string>& choices,
                const char* doc) override {
        const Json* json = find(name);
        if (!json) return;
        const std::string chosen = json->is_string() ? json->get<std::string>() : json->dump();
        if (std::find(choices.begin(), choices.end(), chosen) == choices.end()) {
            std::string all;
            for (const std::string& c : choices) all += (all.empty() ? "" : " | ") + c;
            wrong(name, all.c_str(), *json, doc);
        }
        value = chosen;
    }
    void retired(const char* name, const Retired& removed) override {
        const auto it = object_.find(name);
        if (it == object_.end()) return;
        if (it->dump() != removed.off)
            throw_usage("{}: {}, but there is no such option any more: {}", dotted(name), shown(*it),
                        removed.why);
        known_.insert(name);
    }
    void refused(const char* name, const char* instead) override {
        if (object_.contains(name))
            throw_usage("{}: there is no such key any more; instead: {}", dotted(name), instead);
    }
    void section(const char* name, const char*, const Fields& fields) override {
        const Json* json = find(name);
        if (!json) return;
        Reader inner(*json, dotted(name));
        fields(inner);
        inner.reject_unknown();
    }
    void optional_section(const char* name, bool& present, const char* doc, const Fields& fields) override {
        const Json* json = find(name);
        if (!json) return;
        present = !json->is_null();
        if (present) section(name, doc, fields);
    }
    std::vector<std::string> own_keys(const std::vector<std::string>&) override {
        std::vector<std::string> keys;
        for (const auto& [key, value] : object_.items()) keys.push_back(key);
        return keys;
    }
    void list(const char* name, const char* doc, size_t, const std::function<void(size_t)>& resize,
              const std::function<void(size_t, FieldVisitor&)>& element) override {
        const Json* json = find(name);
        if (!json) return;
        if (!json->is_array()) wrong(name, "a list of objects", *json, doc);
        constexpr size_t kMaxObjects = 1000;
        if (json->size() > kMaxObjects)
            throw_usage("{}: {} entries, at most {}", dotted(name), json->size(), kMaxObjects);
        resize(json->size());
        for (size_t i = 0; i < json->size(); ++i) {
            Reader inner((*json)[i], fmt::format("{}[{}]", dotted(name), i));
            element(i, inner);
            inner.reject_unknown();
        }
    }

    void strings_or_list(const char* name, std::vector<std::string>& strings, const char* doc, size_t size,
                         const std::function<void(size_t)>& resize,
                         const std::function<void(size_t, FieldVisitor&)>& element) override {
        const Json* json = find(name);
        if (!json) return;
        const auto objects = json->is_array() ? std::count_if(json->begin(), json->end(),
                                                              [](const Json& e) { return e.is_object(); })
                                              : 0;
        if (objects > 0 && objects < std::ssize(*json))
            wrong(name, "a list of strings or a list of objects, not both", *json, doc);
        resize(0);
        if (objects > 0) return list(name, doc, size, resize, element);
        field(name, strings, doc);
    }

  private:
    struct Rules {
        const char* doc;
        Limits limits;
    };

    void number(const std::string& name, const Json& json, int64_t& value, const Rules& rules) const {
        double number = 0;
        if (json.is_number()) number = json.get<double>();
        if (!json.is_number() || number != std::floor(number)) wrong(name, "a whole number", json, rules.doc);
        check_limits(name, number, rules);
        value = json.is_number_integer() ? json.get<int64_t>() : static_cast<int64_t>(number);
    }
    void number(const std::string& name, const Json& json, double& value, const Rules& rules) const {
        if (!json.is_number()) wrong(name, "a number", json, rules.doc);
        check_limits(name, json.get<double>(), rules);
        value = json.get<double>();
    }
    template <class T>
    void scheduled(const std::string& name, const Json& json, Scheduled<T>& value, const Rules& rules) const {
        const bool list = json.is_array();
        if (list && json.empty())
            wrong(name, "a number, or a list of one entry for each stage", json, rules.doc);
        std::vector<typename Scheduled<T>::Entry> entries(list ? json.size() : 1);
        for (size_t i = 0; i < entries.size(); ++i) {
            const Json& entry = list ? json[i] : json;
            const std::string key = list ? fmt::format("{}[{}]", name, i) : name;
            if (!entry.is_array()) {
                number(key, entry, entries[i].from, rules);
                entries[i].to = entries[i].from;
                continue;
            }
            if (std::is_integral_v<T>)
                wrong(key, "one whole number per stage, constant within the stage", entry, rules.doc);
            if (entry.size() != 2) wrong(key, "a number, or [from, to]", entry, rules.doc);
            number(key + "[0]", entry[0], entries[i].from, rules);
            number(key + "[1]", entry[1], entries[i].to, rules);
        }
        value = Scheduled<T>(std::move(entries));
    }
    const Json* find(const char* name) {
        known_.insert(name);
        const auto it = object_.find(name);
        return it == object_.end() ? nullptr : &*it;
    }
    std::string where() const { return path_.empty() ? "config" : path_; }
    std::string dotted(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
    [[noreturn]] void wrong(const std::string& name, const char* expected, const Json& actual,
                            const char* doc) const {
        throw_usage("{}: expected {}, got {} ({})", dotted(name), expected, shown(actual), doc);
    }
    void check_limits(const std::string& name, double value, const Rules& rules) const {
        const Limits& limits = rules.limits;
        if (value >= limits.low && value <= limits.high) return;
        throw_usage("{}: {} is outside [{}, {}] ({})", dotted(name), value, limits.low, limits.high,
                    rules.doc);
    }

    const Json& object_;
    const std::string path_;
    std::set<std::string> known_;
};

}  // namespace

void read_fields(const nlohmann::ordered_json& root, Config& config) {
    Reader reader(root, "");
    config.fields(reader);
    reader.reject_unknown();
}

}  // namespace speedrun
