// The interface of an extension of an optimizer group: work after each update of the group, with state of its own per element. An
// extension is one class with its key, checks, state and step, in a header of this folder. No source lists these classes: the
// build does (train/fields/part_list.cmake).
#pragma once

#include <vector>

#include "train/fields/part_set.h"
#include "train/optim/optimizer.h"

namespace speedrun {

class GroupExtension {
  public:
    virtual ~GroupExtension() = default;
    // Throws a usage error, with key and values, if the extension does not fit the group. CheckedGroup::name includes the key.
    virtual void check(const CheckedGroup& group) const = 0;
    // Kinds per element. State is zero at the start of a run.
    virtual std::vector<StateKind> state_kinds() const = 0;
    // Enqueued after each update, with the new values of the shard and the state of the extension. A change of the master
    // includes the compute copy. The shard has no gradient.
    virtual void after_update(const OptimizerShard& shard, const StepContext& context) const = 0;
};

// The extensions of a group, in alphabetical order of their keys.
class GroupExtensions final : public PartSet<GroupExtension> {
  public:
    GroupExtensions();
    void fields(FieldVisitor& v);
};

}  // namespace speedrun
