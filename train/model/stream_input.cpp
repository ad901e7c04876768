#include "train/model/stream_input.h"

#include <algorithm>

#include "train/model/nodes/gate.h"
#include "train/model/nodes/row_before.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

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
        const ValueId normed = w_.real("first", w_.rows_of(x), w_.extents.width());
        w_.add<Norm>({.y = normed, .statistics = w_.statistics("embedding", x), .x = x}, parts_.norms.type,
                     static_cast<float>(parts_.norms.epsilon));
        x_ = normed;
    } else if (part.type == StreamPart::smear) {
        x_ = smear(whole(), part);
    } else if (rows_of(part) == TableRows::ngrams) {
        if (!term_ && tables_.gives_terms(part.table)) x_ = as_term(w_, x_);
        term_ = tables_.gives_terms(part.table);
        x_ = tables_.add_ngrams(x_, part.table);
    } else if (x_ == kNoValue) {
        // One operation looks up token and position.
        const bool with_position = i + 1 < parts_.input.size() &&
                                   parts_.input[i + 1].type == StreamPart::table &&
                                   rows_of(parts_.input[i + 1]) == TableRows::positions;
        x_ = tables_.lookup("embedding", part.table, with_position ? parts_.input[++i].table : "");
        term_ = tables_.gives_terms(part.table);
    } else {
        add_rows(part);
    }
}

// Adds terms to terms, and complete rows to complete rows.
void StreamInput::add_rows(const StreamPartConfig& part) {
    ValueId rows = tables_.lookup(part.table, part.table);
    const bool terms = tables_.gives_terms(part.table);
    if (terms != term_) {
        whole();
        if (terms) rows = everywhere(w_, rows);
    }
    const ValueId sum = w_.real("embedding and " + part.table, w_.extents.tokens(), w_.extents.width());
    w_.add<Add>({.sum = sum, .x = x_, .delta = rows});
    x_ = sum;
}

ValueId StreamInput::smear(ValueId x, const StreamPartConfig& part) {
    const ValueId gate = w_.gate("smear.gate", x, {Dimension::numbers, 1}, part.columns,
                                 "w: sigmoid(w . x[0:columns]) gates the row of the token before");
    const ValueId before = w_.sum("gated row before", w_.extents.width(), {row_before(x, gate)});
    return w_.sum("smeared", w_.extents.width(),
                  {{.value = x},
                   {.value = before,
                    .parameter = w_.number("smear.scale", part.start,
                                           "c: x becomes x + c times the gated row of the token before")}});
}

WeightedSum::Term StreamInput::row_before(ValueId x, ValueId gate) {
    const auto borders = w_.extents.chunk_borders(w_.extents.width());
    if (!borders) return {.value = x, .gate = gate, .shifted = true};
    const ValueId before = w_.real("row before", w_.extents.tokens(), w_.extents.width());
    w_.add<RowBefore>({.y = before, .x = x}, *borders);
    return {.value = before, .gate = gate};
}

}  // namespace speedrun
