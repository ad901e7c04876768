# shellcheck shell=sh
# Hosts on one machine, for tests of runs on several hosts. Each is a network namespace with an address (10.99.0.N), a name
# (nodeN) and a slowed link to a switch, which is a namespace too. Sourced after ../expect.sh; requires root.
#   make_hosts COUNT     creates the hosts, or ends the script with 77 and the reason.
#   in_host N COMMAND…   runs a command on host N.
#   cut N, mend N        disconnects and reconnects its link.
#   kill_host N          kills all its processes.
# ./agent replaces ssh for mpirun.
hosts_id=speedrun-$$
num_hosts=0

skip() {
    echo "skipped: $1"
    exit 77
}
namespace() { echo "$hosts_id-$1"; }

remove_hosts() {
    for n in $(seq "$num_hosts"); do kill_host "$n" 2>/dev/null; done
    for n in $(seq "$num_hosts") switch; do ip netns delete "$(namespace "$n")" 2>/dev/null; done
}

make_hosts() {
    for tool in ip tc unshare hostname; do command -v $tool >/dev/null || skip "$tool is not installed"; done
    [ "$(id -u)" -eq 0 ] || skip "hosts are network namespaces, which root alone may make"
    trap 'remove_hosts; rm -rf "$work"' EXIT
    ip netns add "$(namespace switch)" 2>why || skip "no network namespaces here: $(cat why)"
    { ip -n "$(namespace switch)" link add switch type bridge && ip -n "$(namespace switch)" link set switch up; } 2>why ||
        skip "no bridge here: $(cat why)"
    for n in $(seq "$1"); do
        ns=$(namespace "$n")
        {
            ip netns add "$ns" && num_hosts=$n &&
                ip link add "port$n" netns "$(namespace switch)" type veth peer name eth0 netns "$ns" &&
                ip -n "$(namespace switch)" link set "port$n" master switch up &&
                ip -n "$ns" address add "10.99.0.$n/24" dev eth0 && ip -n "$ns" link set eth0 up && ip -n "$ns" link set lo up
        } 2>why || skip "no link between namespaces here: $(cat why)"
        in_host "$n" tc qdisc add dev eth0 root netem delay 1ms rate 200mbit 2>why ||
            in_host "$n" tc qdisc add dev eth0 root tbf rate 200mbit burst 64kb latency 50ms 2>why ||
            echo "note: the links are not slowed: $(cat why)"
    done
    cat >agent <<J
#!/bin/sh
host=\$1
shift
exec ip netns exec "$hosts_id-\${host##*.}" unshare --uts sh -c "hostname node\${host##*.}; \$*"
J
    # ./answers HOST: true if the host's link is up.
    printf '#!/bin/sh\nip -n %s link show "port${1##*.}" | grep -q "state UP"\n' "$(namespace switch)" >answers
    chmod +x agent answers
}

in_host() {
    host=$1
    shift
    # shellcheck disable=SC2016  # the inner shell's
    ip netns exec "$(namespace "$host")" unshare --uts sh -c 'hostname "$0"; exec "$@"' "node$host" "$@"
}
cut() { ip -n "$(namespace switch)" link set "port$1" down; }
mend() { ip -n "$(namespace switch)" link set "port$1" up; }
kill_host() {
    pids=$(ip netns pids "$(namespace "$1")")
    # shellcheck disable=SC2086  # a list
    [ -z "$pids" ] || kill -9 $pids
}

# addresses COUNT: "10.99.0.1:1,10.99.0.2:1", one rank each.
addresses() {
    list=""
    for n in $(seq "$1"); do list="$list${list:+,}10.99.0.$n:1"; done
    echo "$list"
}
# Options of mpirun, which runs on host 1.
mpirun_options="--mca plm_rsh_agent $work/agent --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 10.99.0.0/24
 --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include 10.99.0.0/24 --bind-to none"
