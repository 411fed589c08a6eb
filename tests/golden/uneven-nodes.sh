# run: r
# stack: current (a test's)
# nodes: node0, node1, node2 (all of cluster 'lab')
# ranks: 4 (one for each NUMA node: 2 on node0, 1 on node1, node2)
# threads of a rank: 4 on node0, node1, 3 on node2 (the nodes' cores differ; every step waits for node2, --exclude leaves it out)
# launcher: mpirun (mpiexec.hydra of Intel MPI; stack 'current')
# backend: gloo (part of PyTorch, over TCP)
# precision: bf16 (avx512_bf16 on all 3 nodes)
# preload: /venv/lib/libiomp5.so (not installed everywhere: libtcmalloc_minimal.so.4)
# network: eth1 on node0, node1; ens5 on node2 (route to the other nodes)
# kernels: torch (stack 'current' has no package orch_kernels)
# rank 0: node0, cores 0-3, 4 threads
# rank 1: node0, cores 4-7, 4 threads
# rank 2: node1, cores 0-3, 4 threads
# rank 3: node2, cores 0-2, 3 threads
# write /opt/orch/runs/r/hostfile on node0: 33 bytes
#   10.0.0.0:2
#   10.0.0.1:1
#   10.0.0.2:1
# write /opt/orch/runs/r/layout.json on node0: 1.7 kB
#   {
#    "schema": 1,
#    "world_size": 4,
#    "backend": "gloo",
#    "backend_module": "",
#    "timeout_seconds": 1800.0,
#    "nodes": [
#     {"name": "node0", "host": "host0", "torch": "2.13.0+cpu", "address": "10.0.0.0", "interface": "eth1", "env": {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1", "FI_PROVIDER": "tcp"}, "repair": "`orch provision`", "recorded": true},
#     {"name": "node1", "host": "host1", "torch": "2.13.0+cpu", "address": "10.0.0.1", "interface": "eth1", "env": {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1", "FI_PROVIDER": "tcp"}, "repair": "`orch provision`", "recorded": true},
#     {"name": "node2", "host": "host2", "torch": "2.13.0+cpu", "address": "10.0.0.2", "interface": "ens5", "env": {"GLOO_SOCKET_IFNAME": "ens5", "TP_SOCKET_IFNAME": "ens5", "CCL_KVS_IFACE": "ens5", "FI_TCP_IFACE": "ens5", "NCCL_SOCKET_IFNAME": "=ens5", "FI_PROVIDER": "tcp"}, "repair": "`orch provision`", "recorded": true}
#    ],
#    "ranks": [
#     {"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": [], "env": {}},
#     {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [4, 5, 6, 7], "threads": 4, "worker_cpus": [], "env": {}},
#     {"rank": 2, "node": "node1", "local_rank": 0, "local_world_size": 1, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": [], "env": {}},
#     {"rank": 3, "node": "node2", "local_rank": 0, "local_world_size": 1, "cpus": [0, 1, 2], "threads": 3, "worker_cpus": [], "env": {}}
#    ]
#   }
# write /opt/orch/runs/r/run.json on node0: 2.2 kB
#   {"schema": 1, "run_id": "r", "node0": {"node": "node0", "via": ["ssh", "-F", "/state/ssh config", "--", "node0"]}, "nodes": [{"node": "node0", "via": ["ssh", "-F", "/state/ssh config", "--", "node0"]}, {"node": "node1", "via": ["ssh", "-F", "/state/ssh config", "--", "node1"]}, {"node": "node2", "via": ["ssh", "-F", "/state/ssh config", "--", "node2"]}], "run_dir": "/opt/orch/runs/r", "train": "/opt/orch/train", "python": "/venv/bin/python", "recipe": "qa", "resumes": true, "output_dir": "/opt/orch/runs/r/output", "backend": "gloo", "precision": "bf16", "started_by": "me@here", "created": 1.0, "decisions": [{"topic": "run", "value": "r", "reason": ""}, {"topic": "stack", "value": "current", "reason": "a test's"}, {"topic": "nodes", "value": "node0, node1, node2", "reason": "all of cluster 'lab'"}, {"topic": "ranks", "value": "4", "reason": "one for each NUMA node: 2 on node0, 1 on node1, node2"}, {"topic": "threads of a rank", "value": "4 on node0, node1, 3 on node2", "reason": "the nodes' cores differ; every step waits for node2, --exclude leaves it out"}, {"topic": "launcher", "value": "mpirun", "reason": "mpiexec.hydra of Intel MPI; stack 'current'"}, {"topic": "backend", "value": "gloo", "reason": "part of PyTorch, over TCP"}, {"topic": "precision", "value": "bf16", "reason": "avx512_bf16 on all 3 nodes"}, {"topic": "preload", "value": "/venv/lib/libiomp5.so", "reason": "not installed everywhere: libtcmalloc_minimal.so.4"}, {"topic": "network", "value": "eth1 on node0, node1; ens5 on node2", "reason": "route to the other nodes"}, {"topic": "kernels", "value": "torch", "reason": "stack 'current' has no package orch_kernels"}], "layout": [{"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": []}, {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [4, 5, 6, 7], "threads": 4, "worker_cpus": []}, {"rank": 2, "node": "node1", "local_rank": 0, "local_world_size": 1, "cpus": [0, 1, 2, 3], "threads": 4, "worker_cpus": []}, {"rank": 3, "node": "node2", "local_rank": 0, "local_world_size": 1, "cpus": [0, 1, 2], "threads": 3, "worker_cpus": []}]}
# write /opt/orch/runs/r/env.json on node0, node1, node2: 145 bytes
#   {
#    "MASTER_ADDR": "10.0.0.0",
#    "MASTER_PORT": "24609",
#    "PYTHONUNBUFFERED": "1",
#    "LD_PRELOAD": "/venv/lib/libiomp5.so",
#    "KMP_BLOCKTIME": "1"
#   }
# start on node0
env I_MPI_PIN=0 I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC=/opt/orch/train/ssh I_MPI_HYDRA_IFACE=eth1 /venv/bin/python /opt/orch/train/node.py supervise /opt/orch/runs/r --claims=/opt/orch/claims --stall-timeout=900 -- /venv/bin/mpiexec.hydra -machinefile /opt/orch/runs/r/hostfile -n 4 /venv/bin/python /opt/orch/train/node.py rank --run /opt/orch/runs/r -- /opt/orch/train/qa/qa.py --epochs=2 --bf16 --output_dir=/opt/orch/runs/r/output
