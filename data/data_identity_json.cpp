#include "data/data_identity.h"
#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const SplitIdentity& split) {
    Json json = {{"tokenizer", split.tokenizer},
                 {"vocab_size", split.vocab_size},
                 {"separator", split.separator},
                 {"separators", split.separators == SeparatorPosition::before ? "before" : "after"},
                 {"vocabulary_sha256", split.vocabulary_sha256},
                 {"hashed_at_start", split.hashed},
                 {"shards", Json::array()}};
    if (!split.source_shards.empty()) json["source_shards"] = split.source_shards;
    for (const ShardIdentity& shard : split.shards)
        json["shards"].push_back({{"file", shard.file},
                                  {"tokens", shard.tokens},
                                  {"sha256", shard.sha256},
                                  {"sampled_sha256", shard.sampled_sha256}});
    return json;
}

SplitIdentity split_of(const Json& json) {
    SplitIdentity split;
    split.tokenizer = json.at("tokenizer").get<std::string>();
    split.vocab_size = whole_number(json.at("vocab_size"));
    split.separator = whole_number(json.at("separator"));
    split.separators = json.at("separators").get<std::string>() == "before" ? SeparatorPosition::before
                                                                            : SeparatorPosition::after;
    split.vocabulary_sha256 = json.at("vocabulary_sha256").get<std::string>();
    split.hashed = json.at("hashed_at_start").get<bool>();
    if (json.contains("source_shards"))
        for (const Json& count : json.at("source_shards").get_ref<const Json::array_t&>())
            split.source_shards.push_back(whole_number(count));
    for (const Json& shard : json.at("shards").get_ref<const Json::array_t&>())
        split.shards.push_back({.file = shard.at("file").get<std::string>(),
                                .tokens = whole_number(shard.at("tokens")),
                                .sha256 = shard.at("sha256").get<std::string>(),
                                .sampled_sha256 = shard.at("sampled_sha256").get<std::string>()});
    return split;
}

}  // namespace

std::string data_identity_to_json(const DataIdentity& data) {
    const Json json = {{"train", json_of(data.train)}, {"val", json_of(data.val)}};
    return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

DataIdentity data_identity_from_json(std::string_view text) {
    const Json json = parse_json<Json>(text);
    try {
        return {.train = split_of(json.at("train")), .val = split_of(json.at("val"))};
    } catch (const Json::exception& error) {
        const std::string what = error.what();  // "[json.exception...] key 'val' not found"
        throw JsonError("not an identity of shards:" + what.substr(what.find(']') + 1));
    }
}

}  // namespace speedrun
