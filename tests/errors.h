// Checks of error messages.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/device/error.h"

namespace speedrun {

using ::testing::HasSubstr;

// Returns the message of the Error that body() throws, which must have this code; "accepted" without one.
template <class Body>
std::string error_of(ExitCode code, Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    return "accepted";
}

// Expects that body() throws an Error with this code, with all of these parts in its message.
template <class Body>
void expect_error(ExitCode code, const std::vector<std::string>& parts, Body&& body) {
    const std::string message = error_of(code, body);
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

}  // namespace speedrun
