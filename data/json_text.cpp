#include "data/json_text.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "data/text_file.h"

namespace speedrun {

namespace {

// Builds the value from the parser's events. The library's builder searches the whole ordered object for each key,
// which takes quadratic time, and silently replaces the value of a duplicate key.
template <class Json>
class JsonBuilder {
  public:
    explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}
    Json take() { return std::move(root_); }

    bool null() { return put(nullptr); }
    bool boolean(bool value) { return put(value); }
    bool number_integer(typename Json::number_integer_t value) { return put(value); }
    bool number_unsigned(typename Json::number_unsigned_t value) { return put(value); }
    bool number_float(typename Json::number_float_t value, const std::string&) { return put(value); }
    bool string(std::string& value) { return put(std::move(value)); }
    bool binary(typename Json::binary_t&) { throw JsonError("binary data is no JSON"); }
    bool start_object(size_t) { return open(Json::object()); }
    bool end_object() { return close(); }
    bool start_array(size_t) { return open(Json::array()); }
    bool end_array() { return close(); }
    bool key(std::string& name) {
        Level& level = levels_.back();
        if (!add(level, name)) throw JsonError("duplicate key \"" + shown_text(name) + '"');
        if (level.value.size() >= limits_.keys)
            throw JsonError("more than " + std::to_string(limits_.keys) + " keys in one object");
        level.key = std::move(name);
        return true;
    }
    [[noreturn]] bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
        constexpr size_t kLongest = 300;
        std::string_view text = error.what();
        text.remove_prefix(text.find("] ") + 2);  // "[json.exception.parse_error.101] "
        const size_t last = text.rfind("; last read: '");
        // The library prints the whole token, which may be the whole file.
        if (last == std::string_view::npos) throw JsonError(std::string(text.substr(0, kLongest)));
        const std::string_view token = text.substr(last + std::string_view("; last read: '").size());
        throw JsonError(std::string(text.substr(0, last)) + "; last read: '" + shown_text(token) +
                        (shown_text(token).ends_with('\'') ? "" : "'"));
    }

  private:
    static constexpr size_t kSearched = 16;  // up to this number of keys, a new one is compared with each

    struct Level {
        Json value;
        std::string key;
        std::unordered_set<std::string> keys;  // filled in objects of more than kSearched keys
    };

    // False if the object has the key.
    static bool add(Level& level, const std::string& name) {
        if constexpr (std::is_same_v<Json, nlohmann::json>) {
            return !level.value.contains(name);
        } else {
            const auto& object = level.value.template get_ref<const typename Json::object_t&>();
            if (object.size() < kSearched) return !level.value.contains(name);
            if (level.keys.empty())
                for (const auto& entry : object) level.keys.insert(entry.first);
            return level.keys.insert(name).second;
        }
    }
    bool open(Json value) {
        if (levels_.size() > kMaxJsonDepth)
            throw JsonError("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
        levels_.push_back({std::move(value), {}, {}});
        return true;
    }
    bool close() {
        Json value = std::move(levels_.back().value);
        levels_.pop_back();
        return put(std::move(value));
    }
    bool put(Json value) {
        if (levels_.empty()) {
            root_ = std::move(value);
            return true;
        }
        Level& level = levels_.back();
        if (level.value.is_array()) {
            level.value.template get_ref<typename Json::array_t&>().push_back(std::move(value));
        } else {
            auto& object = level.value.template get_ref<typename Json::object_t&>();
            if constexpr (std::is_same_v<Json, nlohmann::json>) {
                object.emplace(std::move(level.key), std::move(value));
            } else {
                object.emplace_back(std::move(level.key), std::move(value));
            }
        }
        return true;
    }

    const JsonLimits limits_;
    std::vector<Level> levels_;
    Json root_;
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits) {
    if (text.size() > limits.bytes)
        throw JsonError(std::to_string(text.size()) + " bytes, at most " + std::to_string(limits.bytes) +
                        " are read");
    // The library treats a NUL as the end of the text.
    if (const size_t at = text.find('\0'); at != std::string_view::npos)
        throw JsonError("NUL byte at offset " + std::to_string(at));
    JsonBuilder<Json> builder(limits);
    Json::sax_parse(text, &builder);
    return builder.take();
}

template nlohmann::json parse_json(std::string_view, const JsonLimits&);
template nlohmann::ordered_json parse_json(std::string_view, const JsonLimits&);

}  // namespace speedrun
