#!/bin/sh
# ccl beside gloo between two hosts: network namespaces joined by a veth pair, first unshaped, then at
# 1 Gbit/s. Needs root, iproute2, and the environment of the stack in which `python` runs.
#
#     benchmarks/collectives_two_hosts.sh [options of collectives.py]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v "${PYTHON:-python}")
bin=$(dirname "$python")
id=$$
work=$(mktemp -d)
for host in a b; do ip netns add "ccl$id$host"; done
clean() {
    for host in a b; do
        ip netns pids "ccl$id$host" | xargs -r kill -9
        ip netns del "ccl$id$host"
    done
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

ip link add "v${id}a" type veth peer name "v${id}b"
number=1
for host in a b; do
    ip link set "v$id$host" netns "ccl$id$host"
    ip -n "ccl$id$host" link set "v$id$host" name net0
    ip -n "ccl$id$host" addr add "10.213.7.$number/24" dev net0
    ip -n "ccl$id$host" link set net0 up
    ip -n "ccl$id$host" link set lo up
    number=$((number + 1))
done

# Instead of ssh: `launch [options] HOST COMMAND...` runs the command in that host's namespace.
cat > "$work/launch" <<END
#!/bin/sh
while [ "\${1#10.213.7.}" = "\$1" ]; do shift; done
case \$1 in 10.213.7.1) ns=ccl${id}a ;; *) ns=ccl${id}b ;; esac
shift
exec ip netns exec \$ns sh -c "\$*"
END
chmod +x "$work/launch"

measure() {
    echo "$1"
    shift
    # Each host would use its cores alone; here both are one machine, so pin rank 0 and 1 apart.
    ip netns exec "ccl${id}a" env MASTER_ADDR=10.213.7.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=net0 \
        FI_PROVIDER=tcp FI_TCP_IFACE=net0 I_MPI_FABRICS=ofi I_MPI_PIN=0 BENCH_CORE_BY_RANK=1 \
        "$bin/mpiexec.hydra" -bootstrap ssh -bootstrap-exec "$work/launch" -iface net0 \
        -hosts 10.213.7.1,10.213.7.2 -n 2 -ppn 1 "$python" "$here/collectives.py" --inside "$@"
}

measure "two hosts, unshaped" "$@"
for host in a b; do
    ip netns exec "ccl$id$host" tc qdisc add dev net0 root tbf rate 1gbit burst 256kb latency 50ms
done
measure "two hosts, 1 Gbit/s" "$@"
