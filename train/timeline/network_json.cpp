#include <cmath>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/timeline/network.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Reads the values of one object by key and refuses the others.
class Keys {
  public:
    Keys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
        if (!object.is_object()) throw_data("{}: expected an object, got {}", where_, shown(object));
    }
    void number(const char* key, double least, double most, double& value) {
        const Json* const found = take(key);
        if (!found) return;
        const double read = found->is_number() ? found->get<double>() : std::nan("");
        if (!(read >= least && read <= most))
            throw_data("{}: {}: expected a number from {:g} to {:g}, got {}", where_, key, least, most,
                       shown(*found));
        value = read;
    }
    void text(const char* key, std::string& value) {
        const Json* const found = take(key);
        if (!found) return;
        if (!found->is_string()) throw_data("{}: {}: expected a text, got {}", where_, key, shown(*found));
        value = found->get<std::string>();
    }
    void link(const char* key, NetworkLink& link) {
        const Json* const found = take(key);
        if (!found) return;
        Keys keys(*found, where_ + ": " + key);
        keys.number("latency_us", 0, 1e9, link.latency_us);
        keys.number("gb_s", 0, 1e9, link.gb_s);
        keys.end();
    }
    void end() const {
        for (const auto& [key, value] : object_.items())
            if (std::find(known_.begin(), known_.end(), key) == known_.end())
                throw_data("{}: unknown key '{}'", where_, shown_key<Json>(key));
    }

  private:
    const Json* take(const char* key) {
        known_.emplace_back(key);
        const auto found = object_.find(key);
        return found == object_.end() ? nullptr : &*found;
    }

    const Json& object_;
    const std::string where_;
    std::vector<std::string> known_;
};

}  // namespace

Network parse_network(std::string_view text, const std::string& where) {
    Network network = default_network();
    try {
        const auto json = parse_json<Json>(text);
        network.name = where;
        network.source = where;
        Keys keys(json, where);
        double ranks = static_cast<double>(network.ranks_per_host);
        keys.text("name", network.name);
        keys.text("source", network.source);
        keys.number("ranks_per_host", 1, 65536, ranks);
        if (ranks != std::floor(ranks))
            throw_data("{}: ranks_per_host: expected a whole number, got {:g}", where, ranks);
        network.ranks_per_host = static_cast<int64_t>(ranks);
        keys.number("start_us", 0, 1e9, network.start_us);
        keys.link("inside", network.inside);
        keys.link("between", network.between);
        keys.number("spread", 0, 1, network.spread);
        keys.number("device_share", 0, 1, network.device_share);
        keys.end();
    } catch (const JsonError& error) {
        throw_data("{}: {}", where, error.what());
    }
    return network;
}

Network read_network(const std::string& path) {
    return parse_network(read_text_file(path), path);
}

}  // namespace speedrun
