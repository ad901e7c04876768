// Copy of a KJV record that a test modifies and makes consistent again: hashes, statistics, README.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "data/durable_file.h"
#include "data/sha256.h"
#include "data/text_file.h"
#include "tests/data/test_files.h"
#include "train/records/gzip.h"
#include "train/records/record_folder.h"
#include "train/records/record_text.h"
#include "train/records/record_verify.h"

namespace speedrun {

using MetricsLine = nlohmann::ordered_json;

struct Forgery {
    Record record;
    std::map<std::string, std::vector<MetricsLine>> lines;  // by side and seed, e.g. "candidate-seed1"

    RecordRun& run(const std::string& name) {
        for (RecordRun& run : record.runs) {
            if (run.file == name + ".jsonl.gz") return run;
        }
        throw std::runtime_error(name);
    }
    // Calls change(line) for each line of a side's runs.
    void each_line(const std::string& side, const std::function<void(MetricsLine&)>& change) {
        for (auto& [name, run_lines] : lines) {
            if (!name.starts_with(side)) continue;
            for (MetricsLine& line : run_lines) change(line);
        }
    }
    void set_hardware(const std::string& pointer, const nlohmann::ordered_json& value) {
        nlohmann::ordered_json hardware = nlohmann::ordered_json::parse(record.hardware);
        hardware[nlohmann::ordered_json::json_pointer(pointer)] = value;
        record.hardware = hardware.dump();
    }
    // Replaces a value in both sides' configs, or in one.
    void set(const std::string& pointer, const nlohmann::ordered_json& value, bool candidate = true,
             bool baseline = true) {
        const auto changed = [&](const std::string& config) {
            nlohmann::ordered_json json = nlohmann::ordered_json::parse(config);
            json[nlohmann::ordered_json::json_pointer(pointer)] = value;
            return json.dump();
        };
        if (candidate) record.config = changed(record.config);
        if (baseline) record.baseline->config = changed(record.baseline->config);
    }
};

// Adds the fields of newer records: wall clock of each run and the state of an idle machine.
inline void watch_runs(Forgery& f) {
    for (RecordRun& run : f.record.runs) {
        run.wall_s = (run.startup_ms + run.train_ms) * 1e-3 + 0.2;
        run.machine = MachineState{.seconds = *run.wall_s + 0.3,
                                   .cores = 2,
                                   .others = 0.01,
                                   .mhz_begin = 2400,
                                   .mhz_end = 2400,
                                   .governor = ""};
    }
}

inline std::vector<MetricsLine>& first_run(Forgery& f) {
    return f.lines.at("candidate-seed1");
}

inline void scale_times(MetricsLine& line, double factor) {
    line["train_ms"] = line.at("train_ms").get<double>() * factor;
    if (line.at("event") == "val") return;
    line["step_ms"] = line.at("step_ms").get<double>() * factor;
    line["optimizer_ms"] = line.at("optimizer_ms").get<double>() * factor;
    line["tokens_per_s"] = line.at("tokens_per_s").get<double>() / factor;
}

inline void scale_side(Forgery& f, const char* side, double factor) {
    f.each_line(side, [&](MetricsLine& line) { scale_times(line, factor); });
}

class ForgedRecord {
  public:
    explicit ForgedRecord(const std::string& name) : name_(name) {
        namespace fs = std::filesystem;
        fs::create_directories(dir_.file("records"));
        fs::copy(fs::path(SPEEDRUN_SOURCE_ROOT) / "records/kjv", dir_.file("records/kjv"),
                 fs::copy_options::recursive);
        const std::string path = folder() + "/record.json";
        honest_.record = record_from_json(read_text_file(path), path);
        for (const RecordRun& run : honest_.record.runs) {
            std::istringstream text(gunzip(read_text_file(folder() + "/" + run.file), run.file));
            std::vector<MetricsLine>& lines = honest_.lines[run.file.substr(0, run.file.find('.'))];
            for (std::string line; std::getline(text, line);) lines.push_back(MetricsLine::parse(line));
        }
    }

    const Forgery& honest() const { return honest_; }
    std::string folder() const { return dir_.file("records/kjv/" + name_); }

    // Output of verify, one problem per line, after a change that keeps the record consistent.
    std::string problems_after(const std::function<void(Forgery&)>& change, bool strict = false) const {
        namespace fs = std::filesystem;
        Forgery forged = honest_;
        change(forged);
        const Track track = read_track(dir_.file("records/kjv"));
        for (const auto& entry : fs::directory_iterator(folder()))  // metrics of the previous forgery
            if (entry.path().extension() == ".gz") fs::remove(entry.path());
        for (RecordRun& run : forged.record.runs) {
            std::string text;
            for (const MetricsLine& line : forged.lines.at(run.file.substr(0, run.file.find('.'))))
                text += line.dump() + "\n";
            const std::string bytes = gzip(text);
            write_file(folder() + "/" + run.file, bytes);
            Sha256 hash;
            hash.update(bytes.data(), bytes.size());
            run.sha256 = hash.hex();
            try {
                const RunMetrics metrics = read_metrics(text, run.file);
                run.steps = metrics.steps;
                run.train_ms = metrics.train_ms;
                run.validations = metrics.validations;
            } catch (const std::exception&) {
                continue;  // verify reports the damaged lines
            }
        }
        try {
            count_parameters(forged.record, track, "forged");
        } catch (const Error&) {  // verify reports the config error
        }
        evaluate(forged.record, track);
        write_file(folder() + "/record.json", record_to_json(forged.record));
        write_file(folder() + "/README.md", record_readme(forged.record));
        std::string text;
        for (const std::string& problem : verify_record(folder(), strict).problems) text += problem + "\n";
        return text;
    }

  private:
    const std::string name_;
    const TempDir dir_;
    Forgery honest_;
};

}  // namespace speedrun
