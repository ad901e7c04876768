# shellcheck shell=sh disable=SC2154
# Sourced by tests of whole runs: checks (../expect.sh) and the files of tiny_run.sh in an empty folder, and the dataset tiny, which
# $speedrun prepares. here: the folder of the test.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
expect 0 train "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10
