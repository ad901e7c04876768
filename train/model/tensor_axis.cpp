#include "train/model/tensor_axis.h"

#include "train/model/nodes/redistribute.h"

namespace speedrun {

namespace {

ValueId redistribute(GraphWriter& w, ValueId x, const std::string& suffix, const Redistribution& how) {
    const Extent rows = how.to == Placement::shard(0) ? w.extents.own_tokens() : w.extents.tokens();
    const std::string named = w.model.graph[x].name + suffix;
    const Extent columns = w.model.graph[x].extents.back();
    const Element element = w.model.graph[x].element;
    const ValueId y = how.in_place() ? w.model.graph.view(x, named, 0, columns.size)
                                     : w.model.graph.value(named, element, {rows, columns});
    w.add<Redistribute>({.y = y, .x = x}, how,
                        Redistribute::Options{.part = w.batch.tensor,
                                              .tokens = w.extents.tokens().size,
                                              .width = columns.size,
                                              .element = element});
    return y;
}

}  // namespace

ValueId into_matrices(GraphWriter& w, ValueId x) {
    if (w.batch.tensor.size == 1) return x;
    return redistribute(w, x, " for all",
                        w.batch.tensor.sequence ? Redistribution::gather() : Redistribution::enter());
}

ValueId into_whole(GraphWriter& w, ValueId x) {
    return w.batch.tensor.sequence ? redistribute(w, x, " whole", Redistribution::whole()) : x;
}

ValueId into_stream(GraphWriter& w, ValueId terms) {
    if (w.batch.tensor.size == 1) return terms;
    return redistribute(w, terms, " summed",
                        w.batch.tensor.sequence ? Redistribution::scatter() : Redistribution::sum());
}

ValueId everywhere(GraphWriter& w, ValueId terms) {
    return w.batch.tensor.size == 1 ? terms : redistribute(w, terms, " summed", Redistribution::sum());
}

ValueId shared_out(GraphWriter& w, ValueId x) {
    return w.batch.tensor.sequence ? redistribute(w, x, " shared", Redistribution::slice()) : x;
}

ValueId as_term(GraphWriter& w, ValueId x) {
    return w.batch.tensor.size == 1 ? x : redistribute(w, x, " as a term", Redistribution::term());
}

}  // namespace speedrun
