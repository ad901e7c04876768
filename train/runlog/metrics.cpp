#include "train/runlog/metrics.h"

#include <fmt/format.h>

#include <utility>

#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

void add_to(double& sum, double value) {
    sum += value;
}

void add_to(BytesByKind& sums, const BytesByKind& values) {
    for (const auto& [kind, bytes] : values) sums[kind] += bytes;
}

// Does not compile unless the summary has the member that the step's value rolls up into.
template <class Summary>
void roll_up(Summary& summary, const StepMetrics& step) {
#define SPEEDRUN_ROLL_UP(type, key, how, ...)                                \
    if constexpr (RollUp::how == RollUp::sum) add_to(summary.key, step.key); \
    if constexpr (RollUp::how == RollUp::last) summary.key = step.key;
    SPEEDRUN_STEP_METRICS(SPEEDRUN_ROLL_UP)
#undef SPEEDRUN_ROLL_UP
}

template <class S>
std::string event_line(const char* event, const S& metrics) {
    Json line = {{"event", event}};
    line.update(metrics_to_json<Json>(metrics));
    return line.dump();
}

const char* roll_up_word(RollUp roll_up) {
    switch (roll_up) {
        case RollUp::sum:
            return "sum";
        case RollUp::last:
            return "last";
        case RollUp::none:
            break;
    }
    return nullptr;
}

// Appends the fields of a struct; fields of a nested struct have its key and a dot as prefix.
template <class S>
void list_fields(const std::string& prefix, Json& list) {
    S::fields([&](auto member, const MetricField& field) {
        using T = std::decay_t<decltype(std::declval<S>().*member)>;
        if constexpr (MetricStruct<T>) {
            list_fields<T>(std::string(field.key) + ".", list);
        } else {
            Json one = {{"key", prefix + field.key},
                        {"unit", field.unit},
                        {"title", field.title},
                        {"meaning", field.meaning}};
            if (!std::is_same_v<T, typename MetricValue<T>::type>) one["optional"] = true;
            if (const char* const word = roll_up_word(field.roll_up)) one["roll_up"] = word;
            list.push_back(one);
        }
    });
}

template <class S>
Json fields_of() {
    Json list = Json::array();
    list_fields<S>("", list);
    return list;
}

}  // namespace

void RunSummary::add(const StepMetrics& step) {
    roll_up(*this, step);
}

std::string metrics_line(const StepMetrics& step) {
    return event_line("step", step);
}

std::string metrics_line(const Validation& validation) {
    return event_line("val", validation);
}

std::string summary_text(const RunSummary& summary) {
    Json json = metrics_to_json<Json>(summary);
    if (summary.origin) json["origin"] = parse_json<Json>(run_origin_to_json(*summary.origin));
    for (const SourceUse& source : summary.sources)
        json["sources"].push_back({{"files", source.files},
                                   {"share", source.share},
                                   {"rows", source.rows},
                                   {"tokens", source.tokens},
                                   {"epochs", source.epochs},
                                   {"epoch_tokens_seen", source.epoch.tokens_seen},
                                   {"epoch_tokens_dropped", source.epoch.tokens_dropped}});
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// One field a line.
std::string metric_fields() {
    std::string text = "{\n  \"description\": \"Made by: speedrun plan --metrics\"";
    const std::pair<const char*, Json> files[] = {{"step", fields_of<StepMetrics>()},
                                                  {"val", fields_of<Validation>()},
                                                  {"summary", fields_of<RunSummary>()}};
    for (const auto& [name, fields] : files) {
        text += fmt::format(",\n  \"{}\": [\n", name);
        for (const Json& field : fields)
            text += "    " + field.dump() + (&field == &fields.back() ? "\n  ]" : ",\n");
    }
    return text + "\n}\n";
}

}  // namespace speedrun
