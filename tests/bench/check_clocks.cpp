#include "tests/bench/check_clocks.h"

#include <algorithm>
#include <ctime>
#include <iomanip>
#include <sstream>
#include <vector>

namespace speedrun::bench {

namespace {

struct Sample {
    double time = 0, mhz = 0, watts = 0, celsius = 0;  // time: seconds since 1970
};

// Returns false for a header, a message of nvidia-smi, or a value that the GPU does not report.
bool read_sample(const std::string& line, Sample& sample) {
    std::istringstream in(line);
    std::tm local{};
    char comma = 0;
    std::string unit;
    in >> std::get_time(&local, "%Y/%m/%d %H:%M:%S") >> sample.time >> comma >> sample.mhz >> unit >>
        sample.watts >> unit >> sample.celsius;
    local.tm_isdst = -1;
    sample.time += static_cast<double>(std::mktime(&local));
    return !in.fail();
}

}  // namespace

Json clocks_of(const std::string& csv, const Period& period) {
    std::vector<Sample> samples;
    std::istringstream lines(csv);
    for (std::string line; std::getline(lines, line);) {
        Sample sample;
        if (read_sample(line, sample) && sample.time >= period.began &&
            sample.time <= period.began + period.seconds)
            samples.push_back(sample);
    }
    if (samples.empty()) return nullptr;
    const auto median = [&](double Sample::*value) {
        std::vector<double> values;
        for (const Sample& sample : samples) values.push_back(sample.*value);
        std::sort(values.begin(), values.end());
        return values[values.size() / 2];
    };
    return {{"samples", samples.size()},
            {"mhz", median(&Sample::mhz)},
            {"watts", median(&Sample::watts)},
            {"celsius", median(&Sample::celsius)}};
}

}  // namespace speedrun::bench
