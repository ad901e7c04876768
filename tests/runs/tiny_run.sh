# For scripts that test the command line, in an empty folder (../expect.sh): text.txt, a training text, and tiny.json, its
# config.
i=0
while [ $i -lt 400 ]; do
    echo "chapter $i: the quick brown fox jumps over the lazy dog, and over $i more."
    [ $((i % 4)) -ne 3 ] || echo "%%"
    i=$((i + 1))
done >text.txt

cat >tiny.json <<'J'
{
  "model": {"preset": "modern", "model_dim": 32, "vocab_size": 257, "layers": {"count": 1, "each": {"attention": {"heads": 2}}}},
  "data": {"train": ["tiny/train_*.bin"], "val": ["tiny/val_*.bin"]},
  "batch": {"sequence_length": 64, "microbatch_tokens": 256, "tokens_per_step": 256},
  "optimizers": {"groups": [{"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02},
                            {"type": "adamw", "params": ["*"], "lr": 0.01}]},
  "schedule": {"steps": 20},
  "record": {"target_loss": 50}
}
J
