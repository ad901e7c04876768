// Conversion between structs of train/runlog/metrics.h and JSON; Json: nlohmann's json or ordered_json.
#pragma once

#include <string>
#include <type_traits>

#include "data/json_text.h"
#include "train/runlog/metrics.h"

namespace speedrun {

template <class T>
struct MetricValue {
    using type = T;
};
template <class T>
struct MetricValue<std::optional<T>> {
    using type = T;
};

template <class T>
concept MetricStruct = requires {
    T::fields([](auto, const MetricField&) {});
};

// Writes the members in their order.
template <class Json, MetricStruct S>
Json metrics_to_json(const S& metrics) {
    Json json = Json::object();
    S::fields([&](auto member, const MetricField& field) {
        const auto& value = metrics.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (MetricStruct<T>)
            json[field.key] = metrics_to_json<Json>(value);
        else if constexpr (std::is_same_v<T, typename MetricValue<T>::type>)
            json[field.key] = value;
        else
            json[field.key] = value ? Json(*value) : Json(nullptr);
    });
    return json;
}

// Returns the value of a member from the JSON of its struct. Throws Json::exception or JsonError if its key is missing, null or
// of another type.
template <class Struct, class T, class Json>
typename MetricValue<T>::type value_of(const Json& json, T Struct::*member) {
    const Json& value = json.at(field_of(member).key);
    if constexpr (std::is_same_v<T, int64_t>)
        return whole_number(value);
    else
        return value.template get<typename MetricValue<T>::type>();
}

}  // namespace speedrun
