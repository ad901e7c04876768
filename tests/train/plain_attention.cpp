#include "tests/train/plain_attention.h"

#include <algorithm>
#include <cmath>

namespace speedrun::testing {

namespace {

// W x.
Values times(const Values& matrix, const Values& x) {
    Values y(matrix.size() / x.size());
    for (size_t n = 0; n < y.size(); ++n)
        for (size_t i = 0; i < x.size(); ++i) y[n] += matrix[n * x.size() + i] * x[i];
    return y;
}

Values row_of(const Values& table, int64_t row, int64_t width) {
    return {table.begin() + row * width, table.begin() + (row + 1) * width};
}

}  // namespace

const Values& PlainModel::weight(const Layer& layer, const std::string& name) const {
    return weight("blocks." + std::to_string(layer.number) + ".attn." + name);
}

Values PlainModel::normed(const Values& x) const {
    double square = 0;
    for (const double e : x) square += e * e / static_cast<double>(x.size());
    Values y = x;
    for (double& e : y) e /= std::sqrt(square + parts_.norms.epsilon);
    return y;
}

void PlainModel::turn(const Layer& layer, int64_t token, Values& heads) const {
    const RotaryConfig& rotary = layer.part<RotaryPart>();
    const int64_t half = layer.dim / 2, turning = std::llround(rotary.fraction * static_cast<double>(half));
    for (int64_t h = 0; h < layer.heads; ++h) {
        const auto begin = heads.begin() + h * layer.dim;
        const Values head = normed({begin, begin + layer.dim});
        std::copy(head.begin(), head.end(), begin);
        for (int64_t i = 0; i < turning; ++i) {
            const int32_t position = batch_.positions[static_cast<size_t>(token)];
            const double angle =
                static_cast<double>(layer.has<PairedHeadsPart>() ? 2 * position + h % 2 : position) *
                std::pow(rotary.base, -static_cast<double>(i) / static_cast<double>(turning));
            const double a = begin[i], b = begin[i + half];
            begin[i] = a * std::cos(angle) - b * std::sin(angle);
            begin[i + half] = a * std::sin(angle) + b * std::cos(angle);
        }
    }
}

PlainModel::Rows PlainModel::project(const Layer& layer, const std::vector<Values>& stream) const {
    const int64_t qk = layer.heads * layer.dim, of_v = layer.heads * layer.dim_of_v;
    Rows rows;
    for (size_t t = 0; t < stream.size(); ++t) {
        const Values qkv = times(weight(layer, "qkv.weight"), normed(stream[t]));
        rows.q.emplace_back(qkv.begin(), qkv.begin() + qk);
        rows.k.emplace_back(qkv.begin() + qk, qkv.begin() + 2 * qk);
        rows.v.emplace_back(qkv.begin() + 2 * qk, qkv.begin() + 2 * qk + of_v);
        turn(layer, static_cast<int64_t>(t), rows.q.back());
        turn(layer, static_cast<int64_t>(t), rows.k.back());
        Values& v = rows.v.back();
        if (!layer.config.value_table.empty()) {
            const Values& mix = weight(layer, "value_mix");
            const Values& table = weight(layer.config.value_table + ".weight");
            const int64_t columns = static_cast<int64_t>(table.size()) / model_.padded_vocab_size();
            const Values row = row_of(table, batch_.tokens[t], columns);
            for (int64_t i = 0; i < of_v; ++i) {
                const int64_t head = i / layer.dim_of_v, d = i % layer.dim_of_v;
                double& e = v[static_cast<size_t>(i)];
                e = mix[0] * e + mix[1] * row[static_cast<size_t>(head * (columns / layer.heads) + d)];
            }
        } else if (layer.config.value_scale) {
            for (double& e : v) e *= weight(layer, "value_scale")[0];
        }
    }
    return rows;
}

// Key as used by queries, with the key offset applied.
double PlainModel::key_at(const Layer& layer, const Rows& rows, int64_t token, int64_t column) const {
    const int64_t half = layer.dim / 2,
                  turning = std::llround(layer.part<RotaryPart>().fraction * static_cast<double>(half)),
                  pair = column % layer.dim % half;
    const bool of_before = layer.has<KeyOffsetPart>() && pair >= turning && token % sequence_length_ > 0;
    return rows.k[static_cast<size_t>(of_before ? token - 1 : token)][static_cast<size_t>(column)];
}

Values PlainModel::attend(const Layer& layer, const Rows& rows, int64_t token, int64_t head) const {
    const double scale =
        layer.config.scale > 0 ? layer.config.scale : 1 / std::sqrt(static_cast<double>(layer.dim));
    Values out(static_cast<size_t>(layer.dim_of_v));
    double total = 0;
    const auto see = [&](int64_t key, int64_t head_of_key) {
        double product = 0;
        for (int64_t d = 0; d < layer.dim; ++d)
            product += rows.q[static_cast<size_t>(token)][static_cast<size_t>(head * layer.dim + d)] *
                       key_at(layer, rows, key, head_of_key * layer.dim + d);
        const double weight = std::exp(scale * product);
        total += weight;
        for (int64_t d = 0; d < layer.dim_of_v; ++d)
            out[static_cast<size_t>(d)] +=
                weight *
                rows.v[static_cast<size_t>(key)][static_cast<size_t>(head_of_key * layer.dim_of_v + d)];
    };
    const int64_t pairs = layer.heads / 2, window = layer.window;
    for (int64_t key = batch_.first_key[static_cast<size_t>(token)]; key <= token; ++key) {
        if (!layer.has<PairedHeadsPart>()) {
            if (window == 0 || token - key < window) see(key, head);
            continue;
        }
        for (const int64_t turn : {0, 1}) {
            const int64_t distance = 2 * token + head / pairs - (2 * key + turn);
            if (distance >= 0 && (window == 0 || distance < window)) see(key, head % pairs + turn * pairs);
        }
    }
    for (double& e : out) e /= total;
    return out;
}

Values PlainModel::weights_of(const Layer& layer, const Rows& rows, int64_t token, int64_t head,
                              int64_t first) const {
    const double scale =
        layer.config.scale > 0 ? layer.config.scale : 1 / std::sqrt(static_cast<double>(layer.dim));
    Values weights;
    double total = 0;
    for (int64_t key = first; key <= token; ++key) {
        double product = 0;
        for (int64_t d = head * layer.dim; d < (head + 1) * layer.dim; ++d)
            product +=
                rows.q[static_cast<size_t>(token)][static_cast<size_t>(d)] * key_at(layer, rows, key, d);
        weights.push_back(std::exp(scale * product));
        total += weights.back();
    }
    for (double& w : weights) w /= total;
    return weights;
}

void PlainModel::compose(const Layer& layer, const Rows& rows, int64_t token, int64_t head,
                         Values& out) const {
    const Values &maps = weight(layer, "composed_maps"), &output = weight(layer, "composed_output");
    const int64_t first = std::max<int64_t>(batch_.first_key[static_cast<size_t>(token)],
                                            token - layer.part<ComposeHeadsPart>().keys + 1);
    double square = parts_.norms.epsilon;
    for (const double a : maps) square += a * a / static_cast<double>(layer.heads);
    for (int64_t other = 0; other < layer.heads; ++other) {
        const Values weights = weights_of(layer, rows, token, other, first);
        const double share =
            output[static_cast<size_t>(head)] * maps[static_cast<size_t>(other)] / std::sqrt(square);
        for (int64_t key = first; key <= token; ++key)
            for (int64_t d = 0; d < layer.dim_of_v; ++d)
                out[static_cast<size_t>(d)] +=
                    share * weights[static_cast<size_t>(key - first)] *
                    rows.v[static_cast<size_t>(key)][static_cast<size_t>(head * layer.dim_of_v + d)];
    }
}

// With u = v / ‖v‖: out -= tanh(a)·(out·u)·u.
void PlainModel::exclude_own_value(const Layer& layer, const Values& v, int64_t head, Values& out) const {
    const auto own = v.begin() + head * layer.dim_of_v;
    double length = 0, along = 0;
    for (int64_t d = 0; d < layer.dim_of_v; ++d) length = std::hypot(length, own[d]);
    for (int64_t d = 0; d < layer.dim_of_v; ++d) along += out[static_cast<size_t>(d)] * own[d] / length;
    const double share = std::tanh(weight(layer, "own_value")[static_cast<size_t>(head)]);
    for (int64_t d = 0; d < layer.dim_of_v; ++d)
        out[static_cast<size_t>(d)] -= share * along * own[d] / length;
}

Values PlainModel::losses() const {
    const int64_t width = model_.model_dim;
    std::vector<Values> stream;
    for (const int32_t token : batch_.tokens) stream.push_back(row_of(weight("embed.weight"), token, width));
    const auto layers = parts_.layers.resolved();
    for (size_t number = 0; number < layers.size(); ++number) {
        const AttentionConfig& config = *layers[number]->attention;
        const auto at = static_cast<int64_t>(number);
        const auto dim = [&](int64_t given) { return given > 0 ? given : width / config.heads; };
        const Layer layer{config,
                          at,
                          parts_.window_of(config, at),
                          config.heads,
                          dim(config.qk_head_dim),
                          dim(config.v_head_dim)};
        const Rows rows = project(layer, stream);
        for (size_t t = 0; t < stream.size(); ++t) {
            Values outputs;
            for (int64_t head = 0; head < layer.heads; ++head) {
                Values out = attend(layer, rows, static_cast<int64_t>(t), head);
                if (layer.has<ComposeHeadsPart>()) compose(layer, rows, static_cast<int64_t>(t), head, out);
                if (layer.has<ExcludeOwnValuePart>()) exclude_own_value(layer, rows.v[t], head, out);
                outputs.insert(outputs.end(), out.begin(), out.end());
            }
            const Values added = times(weight(layer, "out.weight"), outputs);
            for (size_t i = 0; i < added.size(); ++i) stream[t][i] += added[i];
        }
    }
    Values losses;
    for (size_t t = 0; t < stream.size(); ++t) {
        const Values logits = times(weight("head.weight"), normed(stream[t]));
        double sum = 0;
        for (int64_t n = 0; n < model_.vocab_size; ++n) sum += std::exp(logits[static_cast<size_t>(n)]);
        const int32_t target = batch_.targets[t];
        losses.push_back(target < 0 ? 0 : std::log(sum) - logits[static_cast<size_t>(target)]);
    }
    return losses;
}

}  // namespace speedrun::testing
