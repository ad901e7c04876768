// 'r': a record.json, evaluated by a track, written and read again. 't': a track.json. 'm': a metrics.jsonl of a record, read
// and thinned. Else: the same, compressed.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/records/gzip.h"
#include "train/records/record.h"

namespace speedrun {
namespace {

void read_again(const std::string& text) {
    Record record = record_from_json(text, "fuzz");
    (void)has_its_hash(text);
    Track track;
    track.validation_tokens = 10;
    track.shards = {{"t.bin", "train", 9, "aa"}, {"v.bin", "val", 11, "bb"}};
    evaluate(record, track);
    const std::string written = record_to_json(record);
    Record again = record_from_json(written, "written");
    evaluate(again, track);
    if (!has_its_hash(written) || record_to_json(again) != written) std::abort();
}

void read_run(const std::string& text) {
    const RunMetrics whole = read_metrics(text, "fuzz"), thin = read_metrics(thin_metrics(text, 3), "thin");
    if (whole.steps != thin.steps || whole.validations.size() != thin.validations.size()) std::abort();
}

}  // namespace
namespace fuzz {

void parse(std::string_view input) {
    if (input.empty()) return;
    const std::string text(input.substr(1));
    if (input[0] == 'r') return read_again(text);
    if (input[0] == 't') return (void)parse_track(text, "fuzz");
    if (input[0] == 'm') return read_run(text);
    read_run(gunzip(text, "fuzz"));
}

}  // namespace fuzz
}  // namespace speedrun
