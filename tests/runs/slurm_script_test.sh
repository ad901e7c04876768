#!/bin/sh
# scripts/launch_slurm.sbatch with a fake Slurm: placement of ranks, continuing after a node is lost, names and stopping. Usage:
# slurm_script_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"
script=$here/../../scripts/launch_slurm.sbatch

mkdir bin
cat >bin/scontrol <<'J'
#!/bin/sh
[ "$*" = "show hostnames node[1-2]" ] && printf 'node1\nnode2\n'
J
# A probe answers unless the node is down. A job step is one process here, and loses its node the first time.
cat >bin/srun <<'J'
#!/bin/sh
case " $* " in
*" true ") host=${*#*--nodelist=}; test ! -e "down-${host%% *}"; exit ;;
esac
echo "$*" >>steps
while [ "${1#-}" != "$1" ]; do shift; done
[ -e down-node2 ] && exec "$@"
touch down-node2
"$@" &
until grep -q '"step":15,' logs/*/metrics.jsonl 2>/dev/null; do sleep 0.02; done
kill -9 $!
exit 137
J
chmod +x bin/scontrol bin/srun
export PATH="$PWD/bin:$PATH" SPEEDRUN="$speedrun" SLURM_JOB_ID=7 SLURM_JOB_NAME=job SLURM_JOB_NODELIST='node[1-2]' \
    SLURM_NTASKS_PER_NODE=1 SLURM_CPUS_PER_TASK=3
saves="--set schedule.steps=400 --set checkpoint.every=10 --set batch.microbatch_tokens=128"

# shellcheck disable=SC2086  # options
sh "$script" tiny.json $saves >out 2>&1 || fail "the job ends with $?: $(cat out)"
grep -q "node2 does not answer" out || fail "nothing is said of the node that is gone: $(cat out)"
for step in "--nodes=2 --nodelist=node1,node2 --ntasks=2 --cpus-per-task=3" "--nodes=1 --nodelist=node1 --ntasks=1 --cpus-per-task=3"; do
    grep -q -e "--kill-on-bad-exit=1 $step $speedrun train tiny.json" steps || fail "no step with $step: $(cat steps)"
done
[ "$(grep -c '"event":"step"' logs/job-7/metrics.jsonl)" -eq 400 ] || fail "the run's history has not 400 steps"

# A user's name is kept; a run stopped by Slurm's signal is not restarted.
rm -f steps
printf '#!/bin/sh\necho "$*" >>steps\ncase "$*" in *" true") exit 0 ;; esac\nexit 138\n' >bin/srun
expect 138 "" sh "$script" tiny.json --name own
[ "$(grep -c "train tiny.json --name own --resume auto" steps)" -eq 1 ] || fail "not one run under its name: $(cat steps)"
grep -q "job-7" steps && fail "named twice: $(cat steps)"
expect 2 "usage: sbatch" sh "$script"
SPEEDRUN=./none expect 2 "./none is not there" sh "$script" tiny.json
exit $failures
