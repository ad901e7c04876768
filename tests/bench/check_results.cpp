#include "tests/bench/check_results.h"

#include <fmt/format.h>

#include <istream>
#include <sstream>

namespace speedrun::bench {

namespace {

constexpr size_t kMaxFailures = 200, kMaxMessage = 2000;

// At most kMaxMessage bytes and no control characters: messages are printed on terminals.
std::string shortened(const std::string& text) {
    std::string out = text.size() <= kMaxMessage ? text : text.substr(0, kMaxMessage) + " ...";
    for (char& c : out) {
        if (std::iscntrl(static_cast<unsigned char>(c)) && c != '\n' && c != '\t') c = '?';
    }
    return out;
}

struct Tests {
    int passed = 0, failed = 0, skipped = 0;
    std::string unfinished;  // test that ran when the process ended
    Json failures = Json::array();

    void add_failure(const std::string& name, const std::string& message) {
        if (failures.size() < kMaxFailures)
            failures.push_back({{"name", name}, {"message", shortened(message)}});
    }
};

// Reads gtest's log: the only result after a crash or a timeout, and of earlier rounds of --gtest_repeat.
Tests read_log(const std::string& log) {
    Tests tests;
    std::istringstream lines(log);
    std::string output;
    for (std::string line; std::getline(lines, line);) {
        const auto name_after = [&](const char* mark) -> std::string {
            const std::string prefix = mark;
            if (line.compare(0, prefix.size(), prefix) != 0) return "";
            return line.substr(prefix.size(), line.find_first_of(" ,", prefix.size()) - prefix.size());
        };
        if (const std::string name = name_after("[ RUN      ] "); !name.empty()) {
            if (!tests.unfinished
                     .empty()) {  // the log of several processes, one of which has ended inside a test
                ++tests.failed;
                tests.add_failure(tests.unfinished, "the process ended inside it\n" + output);
            }
            tests.unfinished = name;
            output.clear();
            continue;
        }
        if (tests.unfinished.empty()) continue;
        if (name_after("[       OK ] ") == tests.unfinished) {
            ++tests.passed;
        } else if (name_after("[  SKIPPED ] ") == tests.unfinished) {
            ++tests.skipped;
        } else if (name_after("[  FAILED  ] ") == tests.unfinished) {
            ++tests.failed;
            tests.add_failure(tests.unfinished, output);
        } else {
            output += line + "\n";
            continue;
        }
        tests.unfinished.clear();
    }
    return tests;
}

void add_gtest_json(const Json& written, Tests& tests) {
    for (const Json& suite : written.at("testsuites")) {
        for (const Json& test : suite.at("testsuite")) {
            if (test.contains("failures")) {
                ++tests.failed;
                tests.add_failure(
                    suite.at("name").get<std::string>() + "." + test.at("name").get<std::string>(),
                    test.at("failures").at(0).at("failure").get<std::string>());
            } else if (test.value("result", "") == "SKIPPED") {
                ++tests.skipped;
            } else if (test.value("result", "") == "COMPLETED") {
                ++tests.passed;
            }
        }
    }
}

// Reads gtest's JSON, of one or of several processes in sequence. Throws if it is anything else.
Tests read_gtest_json(const std::string& text) {
    Tests tests;
    std::istringstream in(text);
    do {
        Json written;
        in >> written;
        add_gtest_json(written, tests);
    } while (!(in >> std::ws).eof());
    return tests;
}

struct Operations {
    Json ops = Json::array(), peaks = Json::array();
    int num_failed = 0, num_damaged = 0;
};

// Reads op_bench's output, one JSON object per line. A line that the report cannot print is damaged.
Operations read_operations(const std::string& text) {
    Operations operations;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const Json record = Json::parse(line, nullptr, false);
        const auto kind = record.is_object() ? record.find("kind") : record.end();
        const bool is_op = kind != record.end() && *kind == "op";
        if ((!is_op && (kind == record.end() || *kind != "ceilings")) || !is_printable(record)) {
            ++operations.num_damaged;
            continue;
        }
        (is_op ? operations.ops : operations.peaks).push_back(record);
        if (is_op && record.value("status", "") != "passed") ++operations.num_failed;
    }
    return operations;
}

std::string last_lines(const std::string& text, int count) {
    const size_t last = text.find_last_not_of('\n');
    if (last == std::string::npos) return "";
    size_t begin = last + 1;  // one past the newline before the counted lines
    while (count-- > 0) {
        if (begin == 0) return text.substr(0, last + 1);
        const size_t newline = begin >= 2 ? text.rfind('\n', begin - 2) : std::string::npos;
        begin = newline == std::string::npos ? 0 : newline + 1;
    }
    return text.substr(begin, last + 1 - begin);
}

}  // namespace

Json check_step_record(const CheckStepEnd& end) {
    Tests tests;
    std::string status = "passed", message = end.message;
    const auto fail = [&](const std::string& why) {
        status = "failed";
        message += (message.empty() ? "" : "; ") + why;
    };
    if (end.is_gtest) {
        const Tests logged = read_log(end.log);
        bool complete = false;
        try {
            tests = read_gtest_json(end.gtest_json);
            complete = true;
        } catch (const std::exception&) {
            tests = logged;
        }
        tests.unfinished = logged.unfinished;
        if (tests.failed == 0 && logged.failed > 0) {  // in an earlier round
            tests.failed = logged.failed;
            tests.failures = logged.failures;
        }
        if (tests.failed > 0) fail(fmt::format("{} tests failed", tests.failed));
        if (!complete && end.exit_code != 77) fail("the tests did not reach their end");
        if (!tests.unfinished.empty()) fail("it ended inside " + tests.unfinished);
        if (tests.passed == 0 && tests.failed == 0) {
            if (tests.skipped > 0 || end.exit_code == 77) {
                status = "skipped";
            } else {
                fail("no test ran");
            }
        }
    }
    Operations operations;
    if (end.is_bench) {
        operations = read_operations(end.bench_lines);
        if (operations.num_failed > 0) fail(fmt::format("{} operations failed", operations.num_failed));
        if (operations.num_damaged > 0)
            fail(fmt::format("{} lines of its results cannot be read", operations.num_damaged));
        if (operations.ops.empty() && end.exit_code != 77) {
            if (operations.peaks.empty()) {
                fail("no operation was timed");
            } else if (status != "failed") {
                status = "skipped";
                message = "every case was left out";
            }
        }
    }
    if (end.exit_code == 77 && status != "failed") {
        status = "skipped";
        message = last_lines(end.log, 1);
    } else if ((end.exit_code == 124 || end.exit_code == 137) && end.seconds >= end.limit_seconds) {
        fail(fmt::format("stopped at its limit of {:.0f} s; last lines: {}", end.limit_seconds,
                         last_lines(end.log, 2)));
    } else if (end.exit_code != 0 && (tests.failed == 0 || !tests.unfinished.empty())) {
        fail(fmt::format("exit code {}; last lines: {}", end.exit_code, last_lines(end.log, 4)));
    }
    if (!end.failure.empty() && end.exit_code == 0) fail(end.failure);
    if (!end.status.empty()) {
        status = end.status;
        message = end.message;
    }
    Json record = {{"kind", "step"},
                   {"stage", end.stage},
                   {"step", end.name},
                   {"status", status},
                   {"exit_code", end.exit_code},
                   {"seconds", end.seconds},
                   {"message", shortened(message)}};
    if (end.is_gtest)
        record["tests"] = {{"passed", tests.passed}, {"failed", tests.failed}, {"skipped", tests.skipped}};
    if (!tests.failures.empty()) record["failures"] = tests.failures;
    if (end.is_bench) {
        record["ceilings"] = operations.peaks;
        record["ops"] = operations.ops;
    }
    if (!end.run.is_null()) record["run"] = end.run;
    if (!end.peers.is_null()) record["peers"] = end.peers;
    if (!end.clocks.is_null()) record["clocks"] = end.clocks;
    if (!is_printable(record)) {  // values of types that the page cannot print
        for (const char* key : {"run", "peers"}) record.erase(key);
        record["status"] = "failed";
        record["message"] = shortened("its figures cannot be read; " + message);
    }
    return record;
}

}  // namespace speedrun::bench
