#include "train/engine/step_slot.h"

namespace speedrun {

StepSlot::StepSlot(const TrainState& state)
    : memory(state.runtime.device(), state.schedule.statistics().host_bytes()) {
    Device& device = state.runtime.device();
    for (auto* event : {&begun, &backward_done, &step_done}) *event = device.create_event(EventKind::timed);
    reduce_done = device.create_event();
    for (auto* count : {&counts.reduce, &counts.gather, &counts.exchange, &values})
        count->done = device.create_event();
}

void StepSlot::enqueue_update(TrainState& state, bool stop) {
    state.runtime.ops().fill({.x = state.schedule.statistics().stop(), .value = stop ? 1.0f : 0.0f},
                             state.runtime.compute());
    state.schedule.step(*backward_done, *reduce_done);
    state.schedule.read_statistics(memory.as<float>(), *reduce_done, *step_done);
    state.reducer.count(counts, state.runtime);
    if (!state.exchanges_values()) return;
    Communicator::count_at(values.counts, state.value_communicators(), state.runtime.compute());
    state.runtime.compute().record(*values.done);
}

}  // namespace speedrun
