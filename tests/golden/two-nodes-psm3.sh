# run: r
# stack: current (a test's)
# nodes: node0, node1 (all of cluster 'lab')
# ranks: 4 (one for each NUMA node)
# launcher: mpirun (mpiexec.hydra of Intel MPI; stack 'current')
# backend: ccl (oneCCL, bindings_module 2.13.0+orch.1, over MPI)
# precision: bf16 (avx512_bf16 on all 2 nodes)
# preload: /venv/lib/libiomp5.so (not installed everywhere: libtcmalloc_minimal.so.4)
# network: eth1 on node0, node1 (has the node's address)
# fabric: psm3 over irdma-cvl01tf2 and irdma-cvl11tf2 on node0, node1 (the fastest one that was verified between all nodes: psm3 92.3 Gbit/s and 3.2 us, tcp 20.5 Gbit/s and 25 us)
# kernels: orch (dropout, attention, activations, losses and Adam on CPUs, BF16 layers with AMX, FP32 products on AMD; --kernels torch keeps torch's)
# ranks 0-3: 2 on each of node0, node1: cores 0-3 / 4-7, 4 threads
# write /opt/orch/runs/r/hostfile on node0: 22 bytes
#   10.0.0.0:2
#   10.0.0.1:2
# write /opt/orch/runs/r/layout.json on node0: 1.5 kB
#   {
#    "schema": 1,
#    "world_size": 4,
#    "backend": "ccl",
#    "backend_module": "bindings_module",
#    "timeout_seconds": 1800.0,
#    "nodes": [
#     {"name": "node0", "host": "host", "torch": "2.13.0+cpu", "address": "10.0.0.0", "interface": "eth1", "env": {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1", "FI_PROVIDER": "psm3", "RDMAV_FORK_SAFE": "1"}, "repair": "`orch provision`", "recorded": true},
#     {"name": "node1", "host": "host", "torch": "2.13.0+cpu", "address": "10.0.0.1", "interface": "eth1", "env": {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1", "FI_PROVIDER": "psm3", "RDMAV_FORK_SAFE": "1"}, "repair": "`orch provision`", "recorded": true}
#    ],
#    "ranks": [
#     {"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": [], "env": {"PSM3_NIC": "irdma-cvl01tf2"}},
#     {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [4, 5, 6, 7], "threads": 4, "worker_cpus": [], "env": {"PSM3_NIC": "irdma-cvl11tf2"}},
#     {"rank": 2, "node": "node1", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": [], "env": {"PSM3_NIC": "irdma-cvl01tf2"}},
#     {"rank": 3, "node": "node1", "local_rank": 1, "local_world_size": 2, "cpus": [4, 5, 6, 7], "threads": 4, "worker_cpus": [], "env": {"PSM3_NIC": "irdma-cvl11tf2"}}
#    ]
#   }
# write /opt/orch/runs/r/run.json on node0: 2.1 kB
#   {"schema": 1, "run_id": "r", "node0": {"node": "node0", "via": ["ssh", "--", "node0"]}, "nodes": [{"node": "node0", "via": ["ssh", "--", "node0"]}, {"node": "node1", "via": ["ssh", "--", "node1"]}], "run_dir": "/opt/orch/runs/r", "train": "/opt/orch/train", "python": "/venv/bin/python", "recipe": "qa", "resumes": true, "output_dir": "/opt/orch/runs/r/output", "backend": "ccl", "precision": "bf16", "started_by": "me@here", "created": 1.0, "decisions": [{"topic": "run", "value": "r", "reason": ""}, {"topic": "stack", "value": "current", "reason": "a test's"}, {"topic": "nodes", "value": "node0, node1", "reason": "all of cluster 'lab'"}, {"topic": "ranks", "value": "4", "reason": "one for each NUMA node"}, {"topic": "launcher", "value": "mpirun", "reason": "mpiexec.hydra of Intel MPI; stack 'current'"}, {"topic": "backend", "value": "ccl", "reason": "oneCCL, bindings_module 2.13.0+orch.1, over MPI"}, {"topic": "precision", "value": "bf16", "reason": "avx512_bf16 on all 2 nodes"}, {"topic": "preload", "value": "/venv/lib/libiomp5.so", "reason": "not installed everywhere: libtcmalloc_minimal.so.4"}, {"topic": "network", "value": "eth1 on node0, node1", "reason": "has the node's address"}, {"topic": "fabric", "value": "psm3 over irdma-cvl01tf2 and irdma-cvl11tf2 on node0, node1", "reason": "the fastest one that was verified between all nodes: psm3 92.3 Gbit/s and 3.2 us, tcp 20.5 Gbit/s and 25 us"}, {"topic": "kernels", "value": "orch", "reason": "dropout, attention, activations, losses and Adam on CPUs, BF16 layers with AMX, FP32 products on AMD; --kernels torch keeps torch's"}], "layout": [{"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": []}, {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [4, 5, 6, 7], "threads": 4, "worker_cpus": []}, {"rank": 2, "node": "node1", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": []}, {"rank": 3, "node": "node1", "local_rank": 1, "local_world_size": 2, "cpus": [4, 5, 6, 7], "threads": 4, "worker_cpus": []}]}
# write /opt/orch/runs/r/env.json on node0, node1: 228 bytes
#   {
#    "MASTER_ADDR": "10.0.0.0",
#    "MASTER_PORT": "24609",
#    "PYTHONUNBUFFERED": "1",
#    "LD_PRELOAD": "/venv/lib/libiomp5.so",
#    "KMP_BLOCKTIME": "1",
#    "CCL_ATL_TRANSPORT": "mpi",
#    "CCL_WORKER_OFFLOAD": "0",
#    "CCL_WORKER_COUNT": "1"
#   }
# start on node0
env I_MPI_PIN=0 I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC=/opt/orch/train/ssh I_MPI_HYDRA_IFACE=eth1 /venv/bin/python /opt/orch/train/node.py supervise /opt/orch/runs/r --claims=/opt/orch/claims --stall-timeout=900 -- /venv/bin/mpiexec.hydra -machinefile /opt/orch/runs/r/hostfile -n 4 /venv/bin/python /opt/orch/train/node.py rank --run /opt/orch/runs/r -- /opt/orch/train/qa/qa.py --epochs=2 --bf16 --output_dir=/opt/orch/runs/r/output
