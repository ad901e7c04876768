// Classes that have ended, have their own target, or have a budget instead of a target.
// build: apart
#include "tests/train/record_fixture.h"
#include "train/records/leaderboard.h"

namespace speedrun::class_rules_test {

using Json = nlohmann::json;

TEST(ClassRulesTest, WhatDoesNotFitIsRefusedByName) {
    const auto refused = [](const char* list, const std::string& part) {
        expect_error(ExitCode::data, {part}, [&] { parse_classes(Json::parse(list)); });
    };
    refused(R"([{"name": "a", "budget_s": 0}])", "class a: budget_s: 0, a number above 0");
    refused(R"([{"name": "a", "budget_s": "60"}])", "class a: budget_s: \"60\", a number above 0");
    refused(R"([{"name": "a", "budget_tokens": 0}])", "class a: budget_tokens: 0, at least 1");
    refused(R"([{"name": "a", "target_loss": -1}])", "class a: target_loss: -1, a number above 0");
    refused(R"([{"name": "a", "budget_s": 1, "target_loss": 1}])", "class a: a budget has no target");
    refused(R"([{"name": "a", "ended": ""}])", "class a: ended: \"\", a reason in words");
    refused(R"([{"name": "a", "ended": "old"}])", "class a: ended_on is missing");
    refused(R"([{"name": "a", "ended_on": "2026-01-01"}])", "class a: ended is missing");
    refused(R"([{"name": "a", "ended": "old", "ended_on": "today"}])", "\"today\", a date YYYY-MM-DD");
    refused(R"([{"name": "a", "history": [{"target_loss": 1}]}])",
            "class a: history: target_loss, until and reason are expected");
    refused(R"([{"name": "a", "history": [{"tagret": 1}]}])", "class a: history: no such key: tagret");
    EXPECT_EQ(
        parse_classes(
            Json::parse(R"([{"name": "a", "dense": true, "max_parameters": 9, "budget_s": 60}])"))[0]
            .rules_text(),
        "a transformer from its weights alone, at most 9 parameters, at most 60 s of training, the lowest "
        "loss leads");
}

TEST(ClassRulesTest, RulesOfModelAndBatchesNameBothValues) {
    const auto classes = parse_classes(Json::parse(
        R"([{"name": "dense", "dense": true}, {"name": "s", "budget_s": 60}, {"name": "t", "budget_tokens": 100}])"));
    ClassFacts facts{.parameters = {}, .hardware = {}};
    EXPECT_EQ(classes[0].problem(facts), "dense, and nobody looked at the model's tables");
    EXPECT_EQ(classes[2].problem(facts), "at most 100 tokens, and nobody counted them");
    facts.not_dense = "model.tables.more.rows: 'ngrams'";
    facts.tokens = 101;
    facts.longest_run_ms = 60001;
    EXPECT_EQ(classes[0].problem(facts), "model.tables.more.rows: 'ngrams'");
    EXPECT_EQ(classes[1].problem(facts), "a run trained for 60.00 s, at most 60");
    EXPECT_EQ(classes[2].problem(facts), "schedule.steps x batch.tokens_per_step: 101 tokens, at most 100");
    facts.not_dense = "";
    facts.tokens = 100;
    facts.longest_run_ms = 60000;
    for (const TrackClass& c : classes) EXPECT_EQ(c.problem(facts), "");
}

class ClassRecordTest : public RecordTest {
  protected:
    std::string boards() const {
        std::vector<Record> records;
        for (const std::string& folder : record_folders(dir_.file("records/toy")))
            records.push_back(read_record(folder));
        std::string text;
        for (const BoardOfRecords& each : boards_of(records, track()))
            text += board_text(each, TableStyle::markdown) + "\n";
        return text;
    }
    std::string leader(const std::string& name, const Record& like) const {
        return leading_record(dir_.file("records/toy"),
                              board_of(*track().find_class(name), like.hardware_class));
    }
};

TEST_F(ClassRecordTest, AnEndedClassKeepsItsRecordsAndTakesNoAttempt) {
    set_classes(R"([{"name": "open"}, {"name": "old", "max_parameters": 10000}])");
    terms_.race = "old";
    const std::string name = record_of(make_result());
    ASSERT_TRUE(read(name).is_record);
    const auto end_on = [&](const std::string& date) {
        set_classes(R"([{"name": "open"}, {"name": "old", "max_parameters": 10000, "ended": "Tables led it.",
                         "ended_on": ")" +
                    date + R"("}])");
    };
    end_on("2999-12-31");
    EXPECT_EQ(problems(name), "");
    EXPECT_THAT(boards(), HasSubstr("**old** (at most 10000 parameters), 2 cores\n\n"
                                    "History: the class ended on 2999-12-31. Tables led it.\n\n| record |"));
    expect_error(ExitCode::usage,
                 {"class old of track toy ended on 2999-12-31: Tables led it.", "Open classes: open"},
                 [&] { track().class_named("old"); });
    EXPECT_EQ(track().class_named("open").name, "open");
    // The record was made after the class ended.
    end_on("2020-01-01");
    EXPECT_EQ(read(name).classes, std::vector<std::string>{"open"});
    EXPECT_THAT(problems(name),
                HasSubstr("verdict.rules.5.met: record.json says true, computed again false"));
}

TEST_F(ClassRecordTest, RecordsOfAPastTargetStayOnABoardOfTheirOwn) {
    set_classes(R"([{"name": "open"}, {"name": "other"}])");
    const std::string name = record_of(make_result());
    const auto move_target = [&](const std::string& until) {
        set_classes(R"([{"name": "open", "target_loss": 1.00, "history": [{"target_loss": 1.15, "until": ")" +
                    until + R"(", "reason": "Counts reach it."}]}, {"name": "other"}])");
    };
    move_target("2999-12-31");
    EXPECT_EQ(problems(name), "");
    const Record record = read(name);
    EXPECT_TRUE(record.is_record);
    EXPECT_EQ(record.classes, (std::vector<std::string>{"open", "other"}));
    EXPECT_EQ(leader("open", record), "");  // no earlier record at the new target
    EXPECT_EQ(leader("other", record), name);
    const std::string text = boards();
    const size_t today =
                     text.find("**open** (any model, any hardware; target 1 nats per token): no record yet"),
                 past = text.find(
                     "**open** (any model, any hardware; target 1.15 nats per token), 2 cores\n\n"
                     "History: this target ended on 2999-12-31. Counts reach it.\n\n| record |");
    EXPECT_LT(today, past) << text;
    EXPECT_NE(past, std::string::npos) << text;
    EXPECT_THAT(text, HasSubstr("**other** (any model, any hardware), 2 cores"));
    // Without its history entry, or after its last day, the old target is not accepted.
    move_target("2020-01-01");
    EXPECT_EQ(read(name).classes, std::vector<std::string>{"other"});
    EXPECT_THAT(problems(name),
                HasSubstr("verdict.rules.0.met: record.json says true, computed again false"));
    EXPECT_EQ(rule(read(name), "data").why, "target 1.15, the track's is 1");
}

TEST_F(ClassRecordTest, AttemptsAimAtTheTargetOfTheirClass) {
    set_classes(
        R"([{"name": "open", "target_loss": 1.00}, {"name": "other"}, {"name": "s", "budget_s": 60}])");
    const Track t = track();
    const auto claim = [&](const char* name, double target) {
        expect_data_of_track(t, *t.find_class(name),
                             {.train_files = {}, .val_files = {}, .val_tokens = 0, .target_loss = target});
    };
    expect_error(ExitCode::usage, {"record.target_loss is 1.15, the target of class open of track toy is 1"},
                 [&] { claim("open", 1.15); });
    expect_error(ExitCode::usage, {"record.target_loss is 1, the target of track toy is 1.15"},
                 [&] { claim("other", 1); });
    // The target matches, or the class ignores it: the next error is the missing shards.
    expect_error(ExitCode::data, {"0 validation tokens"}, [&] { claim("open", 1); });
    expect_error(ExitCode::data, {"0 validation tokens"}, [&] { claim("s", 7); });
}

TEST_F(ClassRecordTest, RecordsWithoutAClassAreOfTheOneThatTheTrackNames) {
    set_classes(R"([{"name": "new", "max_parameters": 9000}, {"name": "open"}])", {{"unclassed", "open"}});
    terms_.race = "";
    AttemptFolder::Result result = make_result(), first = record_of_baseline(result, "slow");
    const std::string slow = record_of(first);
    result.record.baseline->record = result.record.record_before = slow;
    const std::string fast = record_of(result);
    EXPECT_EQ(problems(slow) + problems(fast), "");
    set_classes(R"([{"name": "new", "max_parameters": 9000}, {"name": "open"}])", {{"unclassed", "new"}});
    EXPECT_THAT(problems(fast), HasSubstr("is not on the board of class new"));
    set_classes(R"([{"name": "open"}])", {{"unclassed", "nothing"}});
    expect_error(ExitCode::data, {"unclassed: no class nothing: the track has open"}, [&] { track(); });
}

class BudgetTest : public ClassRecordTest {
  protected:
    // 12 steps of 64 tokens; runs take 120 ms and 180 ms.
    BudgetTest() {
        budget(R"("budget_s": 0.2, "budget_tokens": 768)");
        terms_.race = "budget";
    }
    void budget(const std::string& rules) {
        set_classes(R"([{"name": "open"}, {"name": "budget", )" + rules + "}]");
    }
    AttemptFolder::Result result_of(const std::string& name, double above) {
        terms_.name = name;
        baseline_above_ = above;
        AttemptFolder::Result result = make_result();
        result.record.target_loss = 0;
        return result;
    }
};

TEST_F(BudgetTest, TheLowerLossIsTheRecord) {
    AttemptFolder::Result result = result_of("fast", 0.01), first = record_of_baseline(result, "slow");
    const std::string slow = record_of(first);
    result.record.baseline->record = result.record.record_before = slow;
    const std::string fast = record_of(result);
    EXPECT_EQ(problems(slow) + problems(fast), "");
    const Record record = read(fast);
    EXPECT_TRUE(record.is_record) << figures_markdown(record);
    EXPECT_EQ(record.classes, std::vector<std::string>{"budget"});
    EXPECT_EQ(rule(record, "loss").why.substr(0, 75),
              "1.1420, alternating with slow of 1.1520; Welch's t-test that it is lower: p");
    EXPECT_THAT(record_readme(record), HasSubstr("Mean loss of slow - this: 0.0100"));
    EXPECT_EQ(record_readme(record).find("t-test that the mean loss is below 0"), std::string::npos);
    EXPECT_EQ(leader("budget", record), fast);
    const std::string text = boards();
    EXPECT_THAT(text, HasSubstr("| record | loss | training s | tokens | p | against its predecessor |"));
    EXPECT_LT(text.find("| 1.1420 ± 0.0010 | 0.12 ± 0.00 | 768 |"),
              text.find("| 1.1520 ± 0.0010 | 0.18 ± 0.00 | 768 | - | - |"))
        << text;
    EXPECT_THAT(text, HasSubstr("| 0.0100 below slow |"));
}

TEST_F(BudgetTest, NoLowerLossIsNoRecord) {
    const auto unmet = [&](const AttemptFolder::Result& result) {
        Record record = result.record;
        count_parameters(record, track(), "record");
        evaluate(record, track());
        std::string names;
        for (const RuleResult& r : record.rules) names += r.met ? "" : r.rule + " ";
        return names;
    };
    AttemptFolder::Result result = result_of("fast", 0.01);
    EXPECT_EQ(unmet(result), "");
    AttemptFolder::Result other = result;
    other.record.record_before = "another";
    EXPECT_EQ(unmet(other), "loss ");
    other = result;
    other.record.systems_only = true;
    EXPECT_EQ(unmet(other), "loss ");
    other = result;
    other.record.target_loss = 1.15;  // the class has no target
    EXPECT_EQ(unmet(other), "data ");
    other = result;
    other.record.runs[0].train_ms = 201;
    EXPECT_EQ(unmet(other), "class ");
    budget(R"("budget_tokens": 767)");
    EXPECT_EQ(unmet(result), "class ");
    budget(R"("budget_s": 0.2)");
    // Training time is a third lower, but the loss is equal or higher.
    EXPECT_EQ(unmet(result_of("same", 0)), "loss ");
    result = result_of("higher", -0.01);
    EXPECT_EQ(unmet(result), "loss ");
    evaluate(result.record, track());
    EXPECT_EQ(gain_text(result.record), "0.0100 above slow");
}

// A record for a target also appears on the board of a budget that it meets. There it is ranked by loss only.
TEST_F(BudgetTest, ARecordForATargetHasALossToo) {
    terms_.race = "open";
    baseline_above_ = -0.005;
    AttemptFolder::Result result = make_result(), first = record_of_baseline(result, "slow");
    const std::string slow = record_of(first);
    result.record.baseline->record = result.record.record_before = slow;
    const std::string fast = record_of(result);
    const Record record = read(fast);
    EXPECT_EQ(record.classes, (std::vector<std::string>{"open", "budget"}));
    EXPECT_EQ(leader("open", record), fast);
    EXPECT_EQ(leader("budget", record), slow);  // slower, but equal in loss
    const std::string text = boards();
    EXPECT_LT(text.rfind("| [slow]"), text.rfind("| [fast]")) << text;
    budget(R"("budget_s": 0.15)");
    EXPECT_EQ(read(slow).classes, std::vector<std::string>{"open"});
}

TEST_F(RecordTest, WallTimesStandBesideTrainingTimesWhereThereAreAny) {
    Record record = make_result().record;
    evaluate(record, track());
    const auto board = [&] { return board_text(boards_of({record}, track()).front(), TableStyle::markdown); };
    EXPECT_EQ(board().find("wall s"), std::string::npos);
    for (RecordRun& run : record.runs) run.wall_s = run.side == kCandidate ? 2.5 : 100;
    EXPECT_THAT(board(), HasSubstr("| record | training s | wall s | loss |"));
    EXPECT_THAT(board(), HasSubstr("| 0.12 ± 0.00 | 2.50 ± 0.00 | 1.1420 ± 0.0010 |"));
    const Record again = record_from_json(record_to_json(record), "again");
    EXPECT_EQ(again.runs.front().wall_s, 2.5);
}

}  // namespace speedrun::class_rules_test
