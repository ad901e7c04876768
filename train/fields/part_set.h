// PartSet: optional parts of one kind, at most one of each class. Each key of a section has a class of its own, and no source
// lists the classes: the build does (part_list.cmake).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "train/fields/field_visitor.h"

namespace speedrun {

// A class of parts has kKey and kHelp, and fields(FieldVisitor&) if its key is an object. A part without fields is a switch.
// kDefault = true: a set has the part unless its key is null or false. Copies of a set share the parts; a part does not change
// once it is set.
template <class Part>
class PartSet {
  public:
    using Held = std::shared_ptr<const Part>;

    template <class T>
    const T* find() const {
        const auto at = held_.find(T::kKey);
        return at == held_.end() ? nullptr : static_cast<const T*>(at->second.get());
    }
    template <class T>
    void set(T part) {
        held_[T::kKey] = std::make_shared<const T>(std::move(part));
    }
    template <class T>
    void remove() {
        held_.erase(T::kKey);
    }
    // Parts by key, in alphabetical order.
    const std::map<std::string, Held>& all() const { return held_; }

    // Reads or writes the key of one class.
    template <class T>
    void visit(FieldVisitor& v) {
        const T* const held = find<T>();
        std::optional<T> part = held ? std::optional<T>(*held) : std::nullopt;
        if constexpr (requires { part->fields(v); }) {
            v.optional(T::kKey, part, T::kHelp);
        } else {
            bool on = part.has_value();
            v.field(T::kKey, on, T::kHelp);
            part = on ? std::optional<T>(T{}) : std::nullopt;
        }
        part ? set(*std::move(part)) : remove<T>();
    }

  protected:
    template <class T>
    void set_default() {
        if constexpr (requires { T::kDefault; }) set(T{});
    }

  private:
    std::map<std::string, Held> held_;
};

}  // namespace speedrun
