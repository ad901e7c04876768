#include "train/model/graph/transfers.h"

#include <algorithm>

namespace speedrun {

namespace {

std::set<int> storages_of(const Step& step) {
    std::set<int> all;
    const auto add = [&](const Place& place) {
        if (place.storage >= 0) all.insert(place.storage);
    };
    for (const NodeCall& call : step.calls) {
        for (const auto* places :
             {&call.reads, &call.writes, &call.scratch, &call.orders, &call.written_gradients})
            for (const Place& place : *places) add(place);
        for (const GradientPlace& gradient : call.read_gradients) {
            add(gradient.place);
            add(gradient.other);
        }
    }
    for (const Place& place : {step.target, step.term, step.other}) add(place);
    return all;
}

bool of_one_node(const Step& step) {
    return step.calls.size() == 1 && !step.fusion;
}

// Where the step's node finds its rows, and where it puts them.
Place source_of(const Step& step) {
    const NodeCall& call = step.calls.front();
    return step.kind == Step::Kind::forward ? call.reads.front() : call.written_gradients.front();
}
Place target_of(const Step& step) {
    const NodeCall& call = step.calls.front();
    return step.kind == Step::Kind::forward ? call.writes.front() : call.read_gradients.front().place;
}

bool goes_by_rows(const Step& step) {
    return (step.kind == Step::Kind::forward || step.kind == Step::Kind::backward) && of_one_node(step) &&
           step.calls.front().node->by_rows();
}

bool overlap(const std::set<int>& a, const std::set<int>& b) {
    return std::any_of(a.begin(), a.end(), [&](int storage) { return b.count(storage) > 0; });
}

}  // namespace

void Transfers::add(Step& step, std::vector<Step>& before) {
    const std::set<int> touched = storages_of(step);
    settle(step, touched);
    begin(step, touched, before);
}

void Transfers::settle(Step& step, const std::set<int>& touched) {
    std::erase_if(under_way_, [&](const UnderWay& sent) {
        if (!overlap(touched, sent.touched)) return false;
        // Rows that a node reads one after the other need not all be there when it begins.
        const bool in_pieces = goes_by_rows(step) && step.arrives < 0 &&
                               source_of(step).storage == sent.target &&
                               target_of(step).storage != sent.target;
        if (in_pieces) {
            step.arrives = sent.transfer;
        } else {
            step.awaits.push_back(sent.transfer);
        }
        for (const int storage : sent.touched) storages_.use({.storage = storage}, step.number);
        return true;
    });
}

void Transfers::begin(Step& step, const std::set<int>& touched, std::vector<Step>& before) {
    const bool of_node = step.kind == Step::Kind::forward || step.kind == Step::Kind::backward;
    if (!of_node || !of_one_node(step)) return;
    const auto transfer = step.calls.front().node->transfer(step.kind == Step::Kind::backward);
    if (!transfer) return;
    step.transfer = static_cast<int>(transfers_.size());
    transfers_.push_back(*transfer);
    under_way_.push_back({step.transfer, target_of(step).storage, touched});
    if (before.empty()) return;
    const int source = source_of(step).storage;
    Step& giver = before.back();
    const bool gives = goes_by_rows(giver) && giver.kind == step.kind && target_of(giver).storage == source &&
                       giver.arrives < 0;
    if (!gives) return;
    // The first piece leaves while the giver is still at work on what it reads.
    std::set<int> others = touched;
    others.erase(source);
    if (overlap(others, storages_of(giver))) return;
    giver.departs = step.transfer;
    step.handed_over = true;
    for (const int storage : others) storages_.use_from({.storage = storage}, giver.number);
}

std::vector<int> Transfers::join(int step) {
    std::vector<int> awaited;
    for (const UnderWay& sent : under_way_) {
        awaited.push_back(sent.transfer);
        for (const int storage : sent.touched) storages_.use({.storage = storage}, step);
    }
    under_way_.clear();
    return awaited;
}

}  // namespace speedrun
