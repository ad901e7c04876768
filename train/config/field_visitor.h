// One declaration of an option: its name, default, range and documentation are given once, in the section's
// fields(), and reading JSON, writing the resolved config and printing the help all follow from it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace speedrun {

struct Limits {
    double low = 0;
    double high = std::numeric_limits<double>::infinity();
};

class FieldVisitor {
  public:
    using Fields = std::function<void(FieldVisitor&)>;

    virtual ~FieldVisitor() = default;
    virtual void field(const char* name, int64_t& value, const char* doc, Limits limits = {}) = 0;
    virtual void field(const char* name, double& value, const char* doc, Limits limits = {}) = 0;
    virtual void field(const char* name, bool& value, const char* doc) = 0;
    virtual void field(const char* name, std::string& value, const char* doc) = 0;
    virtual void field(const char* name, std::vector<std::string>& value, const char* doc) = 0;
    // A string out of a list.
    virtual void choice(const char* name, std::string& value, const std::vector<std::string>& choices,
                        const char* doc) = 0;
    // An option that is gone. Resolved configs of older builds, records' among them, may still name it with
    // the value that left it off, which is read and forgotten; nothing writes or documents it.
    virtual void retired(const char* /*name*/, int64_t /*off*/) {}
    // A nested object.
    virtual void section(const char* name, const char* doc, const Fields& fields) = 0;
    // A list of objects; resize(n) makes the list n long, element(i) visits its fields.
    virtual void list(const char* name, const char* doc, size_t size,
                      const std::function<void(size_t)>& resize,
                      const std::function<void(size_t, FieldVisitor&)>& element) = 0;
};

}  // namespace speedrun
