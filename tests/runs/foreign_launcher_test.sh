#!/bin/sh
# A process under a launcher of several processes, but with an MPI that does not detect the others, does not train.
# Usage: foreign_launcher_test.sh SPEEDRUN [MPIEXEC]
# ctest: ARGS SPEEDRUN MPIEXEC PROPERTIES TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1 mpiexec=${2:-}
. "$(dirname "$0")/prepared_run.sh"
short="train tiny.json --quiet --set schedule.steps=3 --name"

# Every training command refuses and creates no folder.
for claim in "SLURM_NTASKS=4 SLURM_PROCID=1 SLURM_STEP_ID=0" "SLURM_NTASKS=4 SLURM_PROCID=1" "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_PROCID=0" \
    "WORLD_SIZE=4 RANK=0 LOCAL_RANK=0" "PMI_SIZE=4 PMI_RANK=1" "PMIX_RANK=1" "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0"; do
    # shellcheck disable=SC2086  # variables
    expect 2 "^error: .*=[14]: a launcher started [24] processes .*--alone" env $claim "$speedrun" $short a
done
export WORLD_SIZE=2 RANK=1
expect 2 "^error: WORLD_SIZE=2: .*mpirun -np 2 speedrun\|has no MPI" "$speedrun" bench tiny.json --steps 1
expect 2 "^error: WORLD_SIZE=2" "$speedrun" records attempt tiny.json --runs 2
expect 2 "^error: WORLD_SIZE=2" "$speedrun" launch -- "$speedrun" train tiny.json --name a
! grep -q restart out || fail "a run that is refused is started again"
[ ! -e logs ] || fail "a refused run left a folder"
# --alone trains. Other commands ignore the variables.
# shellcheck disable=SC2086
expect 0 "done" "$speedrun" $short alone --alone
expect 0 "weights" "$speedrun" plan tiny.json
expect 0 "validation loss" "$speedrun" eval logs/alone
unset WORLD_SIZE RANK
# shellcheck disable=SC2086
{
    expect 0 "done" env PMI_SIZE=4 PMI_RANK=1 "$speedrun" $short pmi --alone
    # A batch script is one process of a job of several tasks. Non-numeric values are ignored.
    expect 0 "^warning: SLURM_NTASKS=4, and this process trains alone" env SLURM_NTASKS=4 SLURM_PROCID=0 "$speedrun" $short batch
    expect 0 "done" env SLURM_NTASKS=four SLURM_STEP_ID=0 WORLD_SIZE=many RANK=1 PMI_SIZE= "$speedrun" $short odd
    ! grep -q warning out || fail "warned of values that are no numbers"
    if [ -n "$mpiexec" ]; then # variables of the build's MPI have precedence
        ranks() { env SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 WORLD_SIZE=3 RANK=1 timeout 60 "$mpiexec" --mca plm rsh --mca ras '^slurm' --oversubscribe --bind-to none "$@"; }
        expect 0 "done" ranks -np 2 "$speedrun" $short two --set batch.microbatch_tokens=128
        grep -q '"ranks": 2' logs/two/summary.json || fail "not two ranks"
        expect 0 "done" ranks -np 1 "$speedrun" $short one
        expect 0 "done" ranks -np 2 sh -c '"$0" "$@"$OMPI_COMM_WORLD_RANK --alone' "$speedrun" $short each
        [ -s logs/each0/summary.json ] && [ -s logs/each1/summary.json ] || fail "two runs that are told to be alone are not two"
    fi
}
exit $failures
