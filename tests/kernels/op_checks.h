// Arguments that do not fit: check() of an operation names the argument, its shape or type and the expected one. Ops calls
// check() for every backend (add_test.cpp).
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "kernels/ops/ops.h"
#include "tests/errors.h"

namespace speedrun::testing {

// Arguments in the compute type of the parameter.
class OpChecks : public ::testing::TestWithParam<DType> {
  protected:
    // A tensor at an address of its own; check() does not read it.
    static Tensor make(DType dtype, std::initializer_list<int64_t> dims) {
        static uintptr_t next = 0;
        return {reinterpret_cast<void*>(next += 4096), dtype, dims};
    }
    static Tensor f32(std::initializer_list<int64_t> dims) { return make(DType::f32, dims); }
    static Tensor i32(std::initializer_list<int64_t> dims) { return make(DType::i32, dims); }
    static Tensor real(std::initializer_list<int64_t> dims) { return make(GetParam(), dims); }

    // Expects that check() throws, with all of these parts in its message.
    template <class Arguments>
    static void refuse(const Arguments& a, const std::vector<std::string>& parts) {
        try {
            a.check();
            ADD_FAILURE() << "accepted, without " << parts.front();
        } catch (const Error& error) {
            for (const std::string& part : parts)
                EXPECT_THAT(error.what(), HasSubstr(part))
                    << "'" << error.what() << "' does not mention '" << part << "'";
        }
    }
    // Arguments that fit; each call changes them and expects an error.
    template <class Arguments>
    struct Changed {
        Arguments fitting;
        void operator()(const std::vector<std::string>& parts,
                        const std::function<void(Arguments&)>& change) const {
            fitting.check();
            Arguments a = fitting;
            change(a);
            refuse(a, parts);
        }
    };
};

#define SPEEDRUN_CHECKS_TEST(Suite)                                                    \
    class Suite : public OpChecks {};                                                  \
    INSTANTIATE_TEST_SUITE_P(Types, Suite, ::testing::Values(DType::f32, DType::bf16), \
                             [](const auto& info) { return std::string(name_of(info.param)); })

}  // namespace speedrun::testing
