#include "train/model/parts/stream.h"

#include <algorithm>
#include <charconv>

#include "kernels/device/error.h"
#include "train/model/layers.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

namespace {

// Nodes of one kind in one place share a name, so at most one is possible.
void expect_one(const char* key, const std::vector<StreamPartConfig>& parts, StreamPart type) {
    int64_t count = 0;
    for (size_t i = 0; i < parts.size(); ++i)
        if (parts[i].type == type && ++count > 1)
            throw_usage("model.{}[{}]: a second {}, at most one is possible", key, i, word_of(type));
}

// Lookups, n-grams, smears and norms in the order of model.input, up to its first sum.
class StreamInput {
  public:
    StreamInput(GraphWriter& writer, const ModelParts& parts, TokenTables& tables)
        : w_(writer), parts_(parts), tables_(tables) {}

    ValueId write();

  private:
    // Writes one part. A lookup of tokens may include the next part, positions, and then advances `part`.
    void add(size_t& part);
    void add_rows(const StreamPartConfig& part);
    // Makes x_ complete on every rank and returns it.
    ValueId whole();
    TableRows rows_of(const StreamPartConfig& part) const { return parts_.find_table(part.table)->rows; }
    size_t num_parts() const;
    // True if a part after `from`, inclusive, needs all rows.
    bool rows_needed(size_t from) const;

    GraphWriter& w_;
    const ModelParts& parts_;
    TokenTables& tables_;
    ValueId x_ = kNoValue;
    bool term_ = false;       // x is a term of the sum over the ranks that share tables
    bool in_stream_ = false;  // x is placed as the residual stream
};

ValueId StreamInput::write() {
    for (size_t i = 0; i < num_parts(); ++i) {
        if (!in_stream_ && x_ != kNoValue && !rows_needed(i)) {
            x_ = term_ ? into_stream(w_, x_) : shared_out(w_, x_);
            term_ = false;
            in_stream_ = true;
        }
        add(i);
    }
    if (in_stream_) return x_;
    return term_ ? into_stream(w_, x_) : shared_out(w_, x_);
}

size_t StreamInput::num_parts() const {
    const auto first_sum =
        std::find_if(parts_.input.begin(), parts_.input.end(),
                     [](const StreamPartConfig& part) { return part.type == StreamPart::sum; });
    return static_cast<size_t>(first_sum - parts_.input.begin());
}

bool StreamInput::rows_needed(size_t from) const {
    for (size_t i = from; i < num_parts(); ++i)
        if (parts_.input[i].type != StreamPart::norm) return true;
    return false;
}

ValueId StreamInput::whole() {
    if (term_) x_ = everywhere(w_, x_);
    term_ = false;
    return x_;
}

void StreamInput::add(size_t& i) {
    const StreamPartConfig& part = parts_.input[i];
    if (part.type == StreamPart::norm) {
        const ValueId x = in_stream_ ? x_ : whole();
        const ValueId normed = w_.compute_value("first", w_.rows_of(x), w_.extents.width());
        w_.add<Norm>({.y = normed, .statistics = w_.statistics("embedding", x), .x = x}, parts_.norms.type,
                     static_cast<float>(parts_.norms.epsilon));
        x_ = normed;
    } else if (part.type == StreamPart::smear) {
        SmearLayer smear{.w = w_, .x = whole()};
        part.smear.build(smear);
        x_ = smear.x;
    } else if (rows_of(part) == TableRows::ngrams) {
        if (!term_ && tables_.is_sharded(part.table)) x_ = as_term(w_, x_);
        term_ = tables_.is_sharded(part.table);
        x_ = tables_.add_ngrams(x_, part.table);
    } else if (x_ == kNoValue) {
        // One operation looks up token and position.
        const bool with_position = i + 1 < parts_.input.size() &&
                                   parts_.input[i + 1].type == StreamPart::table &&
                                   rows_of(parts_.input[i + 1]) == TableRows::positions;
        x_ = tables_.lookup("embedding", part.table, with_position ? parts_.input[++i].table : "");
        term_ = tables_.is_sharded(part.table);
    } else {
        add_rows(part);
    }
}

// Adds terms to terms, and complete rows to complete rows.
void StreamInput::add_rows(const StreamPartConfig& part) {
    ValueId rows = tables_.lookup(part.table, part.table);
    const bool terms = tables_.is_sharded(part.table);
    if (terms != term_) {
        whole();
        if (terms) rows = everywhere(w_, rows);
    }
    const ValueId sum =
        w_.compute_value("embedding and " + part.table, w_.extents.tokens(), w_.extents.width());
    w_.add<Add>({.sum = sum, .x = x_, .delta = rows});
    x_ = sum;
}

}  // namespace

void StreamPartConfig::fields(FieldVisitor& v) {
    v.choice(
        "type", type,
        "operation on the stream; table: add rows of a table; smear: add the previous token's row, times learned factor and "
        "gate; norm: normalise; sum: replace the stream by the sum of terms. In model.input, sums follow all other types");
    v.field("table", table, "name of the table, for type table");
    v.objects("terms", terms, "terms of the sum, for type sum");
    smear.fields(v);
    constexpr const char* kInTerms =
        "{\"type\": \"sum\", \"terms\": [{\"of\": \"after 3\", \"network\": NAME}]}";
    v.retired("of", {"\"\"", kInTerms});
    v.retired("network", {"\"\"", kInTerms});
    v.retired("layer", {"0", kInTerms});
}

StreamPlace stream_place(const std::string& key, const std::string& text) {
    if (text == "first") return {StreamPlace::kFirst};
    if (text == "input") return {StreamPlace::kInput};
    constexpr std::string_view kAfter = "after ";
    int64_t layer = -1;
    if (text.starts_with(kAfter)) {
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data() + kAfter.size(), end, layer);
        if (error == std::errc() && rest == end && layer >= 0) return {layer};
    }
    throw_usage(
        "{}: \"{}\" is no place of the stream: \"first\", \"input\" and \"after 3\" (or another layer) are",
        key, text);
}

StreamPlace place_in(const std::string& key, const std::string& text,
                     const std::vector<std::optional<LayerConfig>>& layers) {
    const StreamPlace place = stream_place(key, text);
    if (place.after < 0) return place;
    if (place.after >= static_cast<int64_t>(layers.size()))
        throw_usage("{} \"{}\": there are layers 0 to {}", key, text, layers.size() - 1);
    if (!layers[static_cast<size_t>(place.after)])
        throw_usage("{} \"{}\": this layer is removed (model.layers.at)", key, text);
    return place;
}

StreamPlace earlier_place(const std::string& key, const std::string& text, int64_t layer,
                          const std::vector<std::optional<LayerConfig>>& layers) {
    const StreamPlace place = place_in(key, text, layers);
    if (place.after >= layer)
        throw_usage("{} \"{}\": {} precedes this place", key, text,
                    layer < 0 ? "model.input" : fmt::format("layer {}", layer));
    return place;
}

void check_stream(const ModelParts& parts, int64_t model_dim) {
    for (const StreamPart type : {StreamPart::norm, StreamPart::smear})
        expect_one("input", parts.input, type);
    if (parts.input.empty()) throw_usage("model.input is empty: begin with a table of tokens");
    for (size_t i = 0; i < parts.input.size(); ++i) {
        const StreamPartConfig& part = parts.input[i];
        const std::string key = fmt::format("model.input[{}]", i);
        if (part.type == StreamPart::smear) part.smear.check(key, model_dim);
        if (i > 0 && part.type != StreamPart::sum && parts.input[i - 1].type == StreamPart::sum)
            throw_usage("{}: {} after a sum: sums follow all other types", key, word_of(part.type));
        if (i == 0 && part.type != StreamPart::table) throw_usage("{}: begin with a table of tokens", key);
    }
    expect_one("output", parts.output, StreamPart::norm);
    for (size_t i = 0; i < parts.output.size(); ++i) {
        const StreamPartConfig& part = parts.output[i];
        const std::string key = fmt::format("model.output[{}]", i);
        if (part.type == StreamPart::table || part.type == StreamPart::smear)
            throw_usage("{}: {} is for model.input", key, word_of(part.type));
    }
}

ValueId write_stream_input(GraphWriter& writer, const ModelParts& parts, TokenTables& tables) {
    return StreamInput(writer, parts, tables).write();
}

}  // namespace speedrun
