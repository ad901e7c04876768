# shellcheck shell=sh
# Sourced by scripts that compare two programs. program_of ARGUMENT FOLDER prints the path of a program: ARGUMENT itself, or the
# program of a commit, which is built once in FOLDER/COMMIT, without GPU code.
program_of() {
    if [ -f "$1" ] && [ -x "$1" ]; then
        realpath "$1"
        return
    fi
    commit=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "error: $1 is neither a program nor a commit" >&2; return 1; }
    tree=$2/$commit
    mkdir -p "$2"
    [ -d "$tree" ] || git worktree add --quiet --detach "$tree" "$commit" || return 1
    (cd "$tree" && cmake --preset release -DSPEEDRUN_CUDA=OFF -DSPEEDRUN_UNITY=ON && cmake --build --preset release --target speedrun) \
        >"$2/$commit.log" 2>&1 || { tail -n 20 "$2/$commit.log" >&2; return 1; }
    realpath "$tree/build/release/speedrun"
}
