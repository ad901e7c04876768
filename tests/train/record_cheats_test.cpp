// Twenty ways to cheat with a record. `verify --strict` or `rerun` rejects each, as the table in docs/verify.md
// states.
// build: apart
#include <cmath>

#include "tests/train/forged_record.h"
#include "train/records/replication.h"

namespace speedrun::record_cheats_test {

using ForgeRecord = std::function<void(Forgery&)>;

struct Cheat {
    const char* row;      // row of the table in docs/verify.md
    const char* message;  // part of the message, also in that row
    ForgeRecord forge;
};

// Renames seeds and files of all runs, as if these seeds had been selected.
void choose_seeds(Forgery& f, const std::vector<int64_t>& seeds) {
    const Forgery honest = f;
    for (RecordRun& run : f.record.runs) {
        const std::string before = run.file.substr(0, run.file.find('.'));
        run.seed = seeds[static_cast<size_t>(run.seed) - 1];
        const std::string after = run.side + "-seed" + std::to_string(run.seed);
        f.lines[after] = honest.lines.at(before);
        run.file = after + ".jsonl.gz";
    }
}

void disturb(Forgery& f, const std::string& side) {
    for (RecordRun& run : f.record.runs)
        if (run.side == side) run.machine->others = 0.5;
}

const std::vector<Cheat> verify_cheats = {
    {"edited metrics", "is X, Y in the line before",
     [](Forgery& f) {
         f.each_line(kCandidate, [](MetricsLine& line) {
             if (line["event"] == "val" && line["step"] == 140) line["train_ms"] = 120.0;
         });
     }},
    {"loss of another run", "more than half of the steps repeat the other's losses",
     [](Forgery& f) {
         auto& copy = f.lines.at("candidate-seed2");
         for (size_t i = 0; i < copy.size(); ++i) copy[i]["loss"] = first_run(f)[i]["loss"];
     }},
    {"swapped sides", "the config's at step",
     [](Forgery& f) {
         for (int64_t seed = 1; seed <= 5; ++seed) {
             const std::string end = "-seed" + std::to_string(seed);
             std::swap(f.lines.at(kCandidate + end), f.lines.at(kBaseline + end));
         }
     }},
    {"clock that stops early", "is X, Y in the line before",
     [](Forgery& f) {
         for (size_t i = 101; i < first_run(f).size(); ++i)
             first_run(f)[i]["train_ms"] = first_run(f)[100]["train_ms"];
     }},
    {"all times halved", "start-up and training take", [](Forgery& f) { scale_side(f, kCandidate, 0.5); }},
    {"wall clock below the training time", "start-up and training take",
     [](Forgery& f) { f.record.runs[0].wall_s = 3.0; }},
    {"tokens of a step", "the config's after step",
     [](Forgery& f) { f.set("/batch/tokens_per_step", 8192); }},
    {"shorter validation", "the track scores", [](Forgery& f) { f.set("/data/val_tokens", 1000); }},
    {"more validations", "expected the validation after", [](Forgery& f) { f.set("/eval/every", 20); }},
    {"training on validation text", "no pattern matches",
     [](Forgery& f) { f.set("/data/train", {"data/kjv/val_*.bin"}); }},
    {"validation text as a training shard", "rule data is not met",
     [](Forgery& f) {
         for (ShardInfo& shard : f.record.data)
             if (shard.split == "val") f.record.data[0].sha256 = shard.sha256;
     }},
    {"another config than recorded", "the config's at step",
     [](Forgery& f) { f.set("/optimizers/groups/0/lr", 0.14, true, false); }},
    {"weights trained before", "starts from the weights in",
     [](Forgery& f) { f.set("/model/init_from", "gpt2"); }},
    {"runs chosen among many", "leave no runs to choose from",
     [](Forgery& f) {
         choose_seeds(f, {3, 17, 22, 41, 58});
     }},
    {"a seed used twice", "vary together",
     [](Forgery& f) {
         auto& copy = f.lines.at("candidate-seed2");
         for (size_t i = 0; i < copy.size(); ++i)
             copy[i]["loss"] =
                 first_run(f)[i]["loss"].get<double>() + 1e-4 * std::sin(7.0 * static_cast<double>(i));
     }},
    {"predecessor slowed by another program", "rule machine is not met",
     [](Forgery& f) { disturb(f, kBaseline); }},
    {"predecessor slowed by its config", "baseline.config.threads",
     [](Forgery& f) { f.set("/threads", 1, false, true); }},
    {"clock of the machine set back", "rule machine is not met",
     [](Forgery& f) {
         for (RecordRun& run : f.record.runs) run.machine->clock_moved_ms = -2000;
     }},
    {"state of the machine left out", "machine: missing",
     [](Forgery& f) { f.record.runs[3].machine.reset(); }},
    {"slow runs ended and made again", "were ended and made again",
     [](Forgery& f) {
         f.record.interrupted = {{kCandidate, 1, 130}, {kCandidate, 3, 120}};
     }},
};

// True if the message occurs in a problem. X and Y in the table match any figures.
bool has_message(const std::string& problems, const std::string& message) {
    const std::string figures = "is X, Y";
    if (const size_t at = message.find(figures); at != std::string::npos)
        return problems.find("train_ms is ") != std::string::npos &&
               problems.find(message.substr(at + figures.size())) != std::string::npos;
    return problems.find(message) != std::string::npos;
}

const ForgedRecord& narrow() {
    static const ForgedRecord record("2026-11-26_narrow");
    return record;
}

std::string docs_text() {
    return read_text_file(std::string(SPEEDRUN_SOURCE_ROOT) + "/docs/verify.md");
}

TEST(RecordCheatsTest, StrictRefusesEach) {
    ASSERT_EQ(verify_cheats.size(), 20U);
    const std::string docs = docs_text();
    for (const Cheat& cheat : verify_cheats) {
        const std::string problems = narrow().problems_after(
            [&](Forgery& f) {
                watch_runs(f);
                cheat.forge(f);
            },
            true);
        EXPECT_TRUE(has_message(problems, cheat.message)) << cheat.row << "\n" << problems;
        const size_t row = docs.find("| " + std::string(cheat.row) + " |");
        ASSERT_NE(row, std::string::npos) << "no row '" << cheat.row << "' in docs/verify.md";
        EXPECT_THAT(docs.substr(row, docs.find('\n', row) - row), HasSubstr(cheat.message)) << cheat.row;
    }
}

TEST(RecordCheatsTest, AnHonestRecordPasses) {
    const ForgedRecord fresh("2026-11-26_narrow");
    EXPECT_EQ(fresh.problems_after(watch_runs, true), "");
    EXPECT_EQ(fresh.problems_after([](Forgery&) {}, true), "");  // older records have no machine state
}

// Cheats that leave consistent files and are detected only by rerunning.
struct Rerun {
    const char* row;
    const char* reason;
    std::function<void(Record& claimed, Record& found)> differ;
};

const std::vector<Rerun> rerun_cheats = {
    {"candidate's times and starts scaled together", "time: 2.369 times as fast here, 3.159 in the record",
     [](Record& claimed, Record&) {
         for (RecordRun& run : claimed.runs)
             if (run.side == kCandidate) run.train_ms *= 0.75;
     }},
    {"losses a little lower in every line", "loss: mean loss 1.15",
     [](Record&, Record& found) {
         for (RecordRun& run : found.runs)
             for (Validation& v : run.validations) v.loss += 0.012;
     }},
};

TEST(RecordCheatsTest, RerunRefusesWhatNoFileShows) {
    const std::string docs = docs_text();
    const Track track = read_track(std::string(SPEEDRUN_SOURCE_ROOT) + "/records/kjv");
    for (const Rerun& cheat : rerun_cheats) {
        Replication r;
        r.attempt = narrow().honest().record;
        Record claimed = r.attempt;
        cheat.differ(claimed, r.attempt);
        for (Record* record : {&claimed, &r.attempt}) {
            count_parameters(*record, track, "narrow");
            evaluate(*record, track);
        }
        judge(r, claimed, track);
        EXPECT_EQ(r.verdict, kNotReplicated) << cheat.row;
        EXPECT_THAT(r.reasons.back(), HasSubstr(cheat.reason));
        EXPECT_THAT(docs, HasSubstr("| " + std::string(cheat.row) + " |")) << cheat.row;
    }
}

}  // namespace speedrun::record_cheats_test
