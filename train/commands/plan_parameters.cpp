#include "train/commands/plan_parameters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/engine/memory_plan.h"
#include "train/model/build_model.h"
#include "train/optim/groups.h"

namespace speedrun {

namespace {

std::string init_text(const InitRule& init) {
    switch (init.kind) {
        case InitRule::Kind::constant:
            return fmt::format("{:g}", init.value);
        case InitRule::Kind::elements: {
            constexpr size_t kMaxListed = 3;
            if (init.elements.size() <= kMaxListed)
                return fmt::format("{:g}", fmt::join(init.elements, ", "));
            const auto [least, most] = std::minmax_element(init.elements.begin(), init.elements.end());
            return fmt::format("{:g} to {:g}", *least, *most);
        }
        case InitRule::Kind::normal:
            return fmt::format("normal, deviation {:.4g}", init.value);
        case InitRule::Kind::uniform:
            return fmt::format("uniform, within {:.4g}", init.value);
    }
    return "";
}

struct Row {
    std::string name, dtype, kept_in, init, optimizer, meaning;
    std::vector<int64_t> shape;
    int group;

    std::string shape_text() const { return fmt::format("[{}]", fmt::join(shape, ",")); }
    std::string group_text() const { return fmt::format("{} {}", group, optimizer); }
};

std::vector<Row> rows_of(const Config& config) {
    const ParameterTable table = parameters_of(config.model, config.longest_sequence());
    const std::vector<int> groups = assign_groups(table, config.optimizers);
    const DType compute_dtype = Runtime(dry_runtime_options(config)).compute_dtype();
    config.optimizers.check_precision(compute_dtype);
    std::vector<Row> rows;
    for (const Parameter& p : table.all()) {
        const int group = groups[static_cast<size_t>(p.id)];
        const OptimizerGroupConfig& steps_it = config.optimizers.groups[static_cast<size_t>(group)];
        rows.push_back({.name = p.name,
                        .dtype = std::string(name_of(p.full_precision ? DType::f32 : compute_dtype)),
                        .kept_in = word_of(steps_it.weights_dtype()),
                        .init = init_text(p.init),
                        .optimizer = word_of(steps_it.type),
                        .meaning = p.meaning,
                        .shape = p.shape,
                        .group = group});
    }
    return rows;
}

}  // namespace

std::string parameters_text(const Config& config) {
    const std::vector<Row> rows = rows_of(config);
    std::string text;
    size_t name = 9, shape = 5, init = 10, group = 5;  // widths of the titles
    for (const Row& row : rows) {
        name = std::max(name, row.name.size());
        shape = std::max(shape, row.shape_text().size());
        init = std::max(init, row.init.size());
        group = std::max(group, row.group_text().size());
    }
    const auto line = [&](const std::string& n, const std::string& s, const std::string& t,
                          const std::string& k, const std::string& i, const std::string& g,
                          const std::string& m) {
        text += fmt::format("{:<{}}  {:<{}}  {:<5} {:<5} {:<{}}  {:<{}}  {}\n", n, name, s, shape, t, k, i,
                            init, g, group, m);
    };
    line("parameter", "shape", "type", "kept", "starts as", "group", "meaning");
    for (const Row& row : rows)
        line(row.name, row.shape_text(), row.dtype, row.kept_in, row.init, row.group_text(), row.meaning);
    return text;
}

std::string parameters_json(const Config& config) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Row& row : rows_of(config))
        all.push_back({{"name", row.name},
                       {"shape", row.shape},
                       {"dtype", row.dtype},
                       {"kept_in", row.kept_in},
                       {"init", row.init},
                       {"group", row.group},
                       {"optimizer", row.optimizer},
                       {"meaning", row.meaning}});
    return all.dump(1) + "\n";
}

}  // namespace speedrun
