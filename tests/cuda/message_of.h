// Message of the Error that `body` throws; it must have this code.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/device/error.h"

namespace speedrun::testing {

inline std::string message_of(const std::function<void()>& body, ExitCode code) {
    try {
        body();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
}

}  // namespace speedrun::testing
