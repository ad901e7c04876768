#!/bin/sh
# A run folder alone, without its data: sample with its options, eval --text, export. Usage: portable_run_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
# Covers: train/commands/run_tokenizer.cpp train/commands/row_losses.cpp train/commands/text_loss_command.cpp
# Covers: train/commands/model_card.cpp
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"
fixtures=$here/../data/fixtures

expect 0 "done" "$speedrun" train tiny.json --name bytes --quiet --set checkpoint.every=10
expect 0 "vocabulary 857" "$speedrun" prepare --input text.txt --out pieces --tokenizer gpt2 --vocab "$fixtures/small_tokenizer.json" --document-marker %% --val-every 10
sed 's/tiny\//pieces\//g; s/"vocab_size": 257/"vocab_size": 857/' tiny.json >pieces.json
expect 0 "done" "$speedrun" train pieces.json --name pieces --quiet --set schedule.steps=60 --set model.preset=gpt2 --set 'optimizers.groups=[{"params":["*"],"lr":0.01}]'
sample() { "$speedrun" sample "$@"; }
sample logs/pieces --prompt "the quick" --tokens 20 --temperature 0 >with_data

# Another machine: no data.
mkdir elsewhere && cp -r logs/bytes logs/pieces elsewhere/ && mv tiny pieces -t "$(mkdir -p away && echo away)"
cd elsewhere || exit 1
expect 0 "^the quick" sample pieces --prompt "the quick" --tokens 20 --temperature 0
cmp -s out ../with_data || fail "the run folder alone gives another text"
expect 0 "^chapter " sample bytes --prompt "chapter " --tokens 5
expect 0 "^chapter " sample bytes/checkpoints/step-00000010 --prompt "chapter " --tokens 5
expect 3 "no file matches.*--text FILE evaluates a text without the run's data" "$speedrun" eval bytes
for run in bytes pieces; do
    expect 0 "tokenizer$" "$speedrun" export $run hf_$run
    for file in config.json model.safetensors tokenizer.json tokenizer_config.json generation_config.json README.md; do
        [ -s hf_$run/$file ] || fail "no hf_$run/$file"
    done
done
has hf_bytes/README.md "^| validation loss | " "^| training | 20 steps, " "^| data | tiny |"
[ -s hf_bytes/modeling_speedrun.py ] && [ ! -e hf_pieces/modeling_speedrun.py ] || fail "the code is not where it is needed"

# An imported folder brings its tokenizer.
expect 0 "GPT-2 of 1 layers" "$speedrun" import hf_pieces --name imported
expect 0 "^the quick" sample logs/imported --prompt "the quick" --tokens 20 --temperature 0
cmp -s out ../with_data || fail "the imported run gives another text"
echo '{"model": 5}' >hf_pieces/tokenizer.json
expect 0 "warning: the run has no tokenizer: hf_pieces/tokenizer.json: .*--vocab FILE" "$speedrun" import hf_pieces --name bare
expect 0 "^the quick" sample logs/bare --prompt "the quick" --tokens 20 --temperature 0 --vocab "$fixtures/small_tokenizer.json"
expect 2 "needs --vocab" sample logs/bare

# The vocabulary is compared with the run's.
expect 3 "^error: --vocab .*tokenizer.json: SHA-256 is .*, the run's vocabulary has" sample pieces --vocab hf_bytes/tokenizer.json
cp -r pieces changed && echo >>changed/tokenizer/vocabulary
expect 3 "changed/tokenizer/vocabulary: SHA-256 is .*, expected" sample changed
rm -r changed && cp -r pieces changed && sed -i 's/857/900/' changed/tokenizer/dataset.json
expect 3 "changed/tokenizer/dataset.json: 900 tokens, .*the run was trained on 857 tokens" "$speedrun" export changed hf_changed
[ ! -e hf_changed ] && [ ! -e hf_changed.part ] || fail "a refused export left a folder"
# Runs of older versions have no copy.
rm -r changed/tokenizer
expect 3 "no file matches.*no copy of the vocabulary: name it with --vocab FILE" sample changed
expect 0 "^the quick" sample changed --vocab "$fixtures/small_tokenizer.json" --prompt "the quick" --tokens 20 --temperature 0
cp -r bytes old && rm -r old/tokenizer
expect 0 "^chapter " sample old --prompt "chapter " --tokens 5
echo '{' >old/data.json
expect 3 "old: the identity of its data (data.json.* is damaged" sample old

# Sample i does not depend on the number of samples, and a line of --interactive has the samples of --prompt.
draw="--tokens 12 --seed 7 --top-k 40 --top-p 0.9 --temperature 1.1"
# shellcheck disable=SC2086  # words
{
    sample bytes --prompt "the " --samples 4 $draw >four
    sample bytes --prompt "the " --samples 2 $draw >two
    sample bytes --prompt "the " $draw >one
    sample bytes --prompt "chap" --samples 2 $draw >chap
    printf 'the \nchap\r\n' | sample bytes --interactive --samples 2 $draw >lines
    sample bytes --prompt "the " --tokens 12 --seed 8 --top-k 40 --top-p 0.9 --temperature 1.1 >other_seed
}
[ "$(grep -c '^---$' four)" = 3 ] || fail "4 samples are not separated by 3 lines"
head -c "$(wc -c <two)" four | cmp -s - two || fail "samples depend on their number"
head -c "$(wc -c <one)" two | cmp -s - one || fail "a sample depends on the number of samples"
cat two chap | cmp -s - lines || fail "lines of --interactive have other samples"
cmp -s one other_seed && fail "the seed changes nothing"
[ "$(sample bytes --prompt "the " --samples 3 --top-k 1 --tokens 9 | sort -u | grep -cv '^---$')" = 1 ] || fail "--top-k 1 leaves a choice"
sample bytes --prompt "the " --tokens 9 --temperature 0 >best
sample bytes --prompt "the " --tokens 9 --top-p 1e-9 | cmp -s - best || fail "--top-p 1e-9 is not the most likely token"
[ -z "$(sample bytes --interactive </dev/null)" ] || fail "no line has a sample"
for bad in "--top-k -1" "--top-k x" "--top-p 0" "--top-p nan" "--top-p 1.5" "--samples 0" "--tokens -1" "--interactive --prompt a"; do
    # shellcheck disable=SC2086
    expect 2 "$(echo "$bad" | sed 's/ .*//')" sample bytes $bad
done

# eval --text: every token of the text once, in rows. The mean is over tokens; bits per byte are of the text.
head -n 50 ../text.txt | grep -v %% >text
expect 0 "^loss .* nats/token, perplexity .* bits/byte over $(wc -c <text) tokens, $(wc -c <text) bytes of text$" "$speedrun" eval bytes --text text
"$speedrun" eval pieces --text text --json >of_pieces
"$speedrun" eval bytes --text text --json >of_bytes
if command -v python3 >/dev/null; then
    python3 - <<'P' || fail "the figures of eval --text do not agree"
import json, math
for name in ("of_bytes", "of_pieces"):
    got = json.load(open(name))
    size = len(open("text", "rb").read())
    assert got["bytes"] == size and (got["tokens"] == size) == (name == "of_bytes"), got
    assert math.isclose(got["perplexity"], math.exp(got["loss"])), got
    assert math.isclose(got["bits_per_byte"], got["loss"] * got["tokens"] / size / math.log(2)), got
    assert 0 < got["loss"] < 6, got
P
fi
# A text that fits one row has the loss that --multiple-choice adds up.
printf 'the quick brown fox' >short
echo '{"context": "", "endings": ["the quick brown fox", "x"], "label": 0}' >items.jsonl
expect 0 "accuracy" "$speedrun" eval bytes --multiple-choice items.jsonl
if command -v python3 >/dev/null; then
    "$speedrun" eval bytes --multiple-choice items.jsonl --json >choice && "$speedrun" eval bytes --text short --json >of_short
    python3 -c 'import json
a = json.load(open("of_short")); b = json.load(open("choice"))["scores"][0][0]
assert a["tokens"] == b["tokens"] and abs(a["loss"] * a["tokens"] + b["sum"]) < 1e-4, (a, b)' || fail "--text and --multiple-choice differ"
fi
# --text reads files as prepare does.
same_as_text() {
    "$speedrun" eval bytes --text "$@" --json >out 2>&1
    cmp -s out of_bytes || fail "--text $1 has other figures than the text"
}
gzip -k text && same_as_text text.gz
{ printf '\377\376'; iconv -f utf-8 -t utf-16le text; } >text16 && same_as_text text16
{ printf '\357\273\277'; cat text; } >marked && same_as_text marked
if command -v python3 >/dev/null; then
    python3 -c 'import json; print(json.dumps({"body": open("text").read()}))' >text.jsonl
    same_as_text text.jsonl --json-key body
fi
expect 3 "text.jsonl: line 1: key 'text' is missing; the object has body" "$speedrun" eval bytes --text text.jsonl
# A document is predicted without the documents before it.
printf '{"text": "the quick brown fox"}\n{"text": ""}\n{"text": "the quick brown fox"}\n' >two.jsonl
"$speedrun" eval bytes --text short --json >once
expect 0 '"tokens":38,"bytes":38' "$speedrun" eval bytes --text two.jsonl --json
[ "$(cut -d, -f1-3 out)" = "$(cut -d, -f1-3 once)" ] || fail "two equal documents have another loss than one"
expect 3 "looks binary" "$speedrun" eval bytes --text "$speedrun"
printf 'a text with 1 byte \377\n' >latin
expect 0 "warning: latin: 1 bytes outside UTF-8, the first at byte 19" "$speedrun" eval bytes --text latin
expect 2 "json-key" "$speedrun" eval bytes --json-key body
: >empty
expect 3 "empty: empty" "$speedrun" eval bytes --text empty
expect 3 "none: cannot be read" "$speedrun" eval bytes --text none
expect 2 "vocab" "$speedrun" eval bytes --vocab x
expect 2 "text" "$speedrun" eval bytes --text text --multiple-choice items.jsonl

# A killed run has no final weights: its newest checkpoint is read. Final weights of an earlier step are not.
sample bytes/checkpoints/step-00000010 --prompt "the " --tokens 20 --temperature 0 >of_ten
cp -r bytes killed && rm -r killed/checkpoints/final killed/summary.json killed/checkpoints/step-00000020
expect 0 "^the " sample killed --prompt "the " --tokens 20 --temperature 0
cmp -s out of_ten || fail "a killed run is not sampled from its newest checkpoint"
sample bytes --prompt "the " --tokens 20 --temperature 0 | cmp -s - out && fail "steps 10 and 20 have one text"
expect 0 "^loss" "$speedrun" eval killed/ --text text
expect 0 "tokenizer$" "$speedrun" export killed hf_killed
sample bytes --prompt "the " --tokens 20 --temperature 0 >of_twenty
cp -r bytes extended && sed -i 's/"steps": 20/"steps": 5/' extended/summary.json && : >extended/checkpoints/final/model.safetensors
expect 0 "^the " sample extended --prompt "the " --tokens 20 --temperature 0
cmp -s out of_twenty || fail "a continued run is not sampled from its newest checkpoint"
cp -r bytes later && rm -r later/checkpoints/step-00000020
expect 0 "^the " sample later --prompt "the " --tokens 20 --temperature 0
cmp -s out of_twenty || fail "final weights of a later step are not sampled"
sample bytes/checkpoints/final/ --prompt "the " --tokens 20 --temperature 0 | cmp -s - of_twenty || fail "final weights have another text"
expect 0 "tokenizer$" "$speedrun" export bytes/checkpoints/final hf_final
cmp -s hf_final/model.safetensors hf_bytes/model.safetensors || fail "final weights are exported differently"
sed -i 's/"status": "done"/"status": "failed"/' later/summary.json
expect 0 "^the " sample later --prompt "the " --tokens 20 --temperature 0
cmp -s out of_ten || fail "final weights that a failed run did not write are sampled"
rm -r killed/checkpoints/step-00000010
expect 2 "killed: the run has no checkpoint and has not ended" sample killed
expect 2 "hf_bytes: not a run folder: .speedrun import. makes one" sample hf_bytes

# Weights that are not finite.
cp -r bytes bad && rm -r bad/checkpoints/step-*
weights=bad/checkpoints/final/model.safetensors
printf '\000\000\300\177' | dd of=$weights bs=1 seek=$(($(wc -c <$weights) - 4)) conv=notrunc 2>/dev/null
expect 4 "bad: the run has diverged" "$speedrun" eval bad --text text
expect 4 "bad: the run has diverged" "$speedrun" eval bad --multiple-choice items.jsonl
expect 4 "bad: the run has diverged" "$speedrun" export bad hf_bad
[ ! -e hf_bad ] && [ ! -e hf_bad.part ] || fail "weights of a diverged run are exported"

# A run without a vocabulary says so, and takes one.
cd .. && mkdir plain && cp away/pieces/*.bin plain/
sed 's/tiny\//plain\//g; s/"vocab_size": 257/"vocab_size": 50304/' tiny.json >plain.json
expect 0 "note: the run folder has no vocabulary: .*need --vocab FILE" "$speedrun" train plain.json --name plain --set schedule.steps=1
[ ! -e logs/plain/tokenizer ] || fail "a tokenizer of unknown data is stored"
# A missing vocabulary ends no run.
cp -r away/pieces gone && rm gone/vocabulary
sed 's/tiny\//gone\//g; s/"vocab_size": 257/"vocab_size": 857/' tiny.json >gone.json
expect 0 "note: gone/vocabulary: .*need --vocab FILE" "$speedrun" train gone.json --name gone --set schedule.steps=1
expect 0 "^a" sample logs/gone --prompt a --tokens 1 --vocab "$fixtures/small_tokenizer.json"
expect 0 "done" "$speedrun" train plain.json --name named --quiet --set schedule.steps=1 --set "data.vocabulary=$fixtures/small_tokenizer.json"
[ -s logs/named/tokenizer/vocabulary ] || fail "the vocabulary of data.vocabulary is not stored"
exit $failures
