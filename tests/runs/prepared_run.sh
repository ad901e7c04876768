# shellcheck shell=sh disable=SC2154
# Sourced by tests of whole runs: checks (../expect.sh) and the files of tiny_run.sh in an empty folder, and the dataset tiny, which
# $speedrun prepares, and toy_track. here: the folder of the test.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
expect 0 train "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10
# toy_track MEMBERS: writes the track toy of the dataset tiny, with these members too (each ends in a comma).
toy_track() {
    mkdir -p records/toy
    cat >records/toy/track.json <<J
{"name": "toy", "target_loss": 50, "hardware_class": "any", $1 "dataset": $(cat tiny/dataset.json),
 "validation": {"tokens": $(($(grep -A 1 '"split": "val"' tiny/dataset.json | tr -dc '0-9') - 1))},
 "rules": {"min_runs": 2, "max_loss_p": 0.01, "max_time_p": 0.01, "systems_only": {"loss_margin": 0.01, "max_p": 0.05}}}
J
}
