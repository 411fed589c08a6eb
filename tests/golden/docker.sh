# run: r
# stack: current (a test's)
# nodes: node0, node1 (all of cluster 'lab')
# ranks: 4 (2 on each node, as requested)
# launcher: mpirun (mpiexec.hydra of Intel MPI; stack 'current')
# image: orch:current (by docker, one container on each node, as the node's user; ranks on its python3)
# backend: gloo (part of PyTorch, over TCP)
# precision: bf16 (avx512_bf16 on all 2 nodes)
# preload: libiomp5.so, libtcmalloc_minimal.so.4 (if the image has them)
# network: eth1 on node0, node1 (route to the other nodes)
# kernels: torch (stack 'current' has no package orch_kernels)
# ranks 0-3: 2 on each of node0, node1: cores 0-1 / 2-3, 2 threads
# write /opt/orch/runs/r/hostfile on node0: 22 bytes
#   10.0.0.0:2
#   10.0.0.1:2
# write /opt/orch/runs/r/layout.json on node0: 1.3 kB
#   {
#    "schema": 1,
#    "world_size": 4,
#    "backend": "gloo",
#    "backend_module": "",
#    "timeout_seconds": 1800.0,
#    "nodes": [
#     {"name": "node0", "host": "host0", "torch": "2.13.0+cpu", "address": "10.0.0.0", "interface": "eth1", "env": {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1", "FI_PROVIDER": "tcp"}, "repair": "`orch provision`", "recorded": true},
#     {"name": "node1", "host": "host1", "torch": "2.13.0+cpu", "address": "10.0.0.1", "interface": "eth1", "env": {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1", "FI_PROVIDER": "tcp"}, "repair": "`orch provision`", "recorded": true}
#    ],
#    "ranks": [
#     {"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "worker_cpus": [], "env": {}},
#     {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "worker_cpus": [], "env": {}},
#     {"rank": 2, "node": "node1", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "worker_cpus": [], "env": {}},
#     {"rank": 3, "node": "node1", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "worker_cpus": [], "env": {}}
#    ]
#   }
# write /opt/orch/runs/r/run.json on node0: 2.0 kB
#   {"schema": 1, "run_id": "r", "node0": {"node": "node0", "via": ["ssh", "-F", "/state/ssh config", "--", "node0"]}, "nodes": [{"node": "node0", "via": ["ssh", "-F", "/state/ssh config", "--", "node0"]}, {"node": "node1", "via": ["ssh", "-F", "/state/ssh config", "--", "node1"]}], "run_dir": "/opt/orch/runs/r", "train": "/opt/orch/train", "python": "/venv/bin/python", "recipe": "qa", "resumes": true, "output_dir": "/opt/orch/runs/r/output", "backend": "gloo", "precision": "bf16", "started_by": "me@here", "created": 1.0, "decisions": [{"topic": "run", "value": "r", "reason": ""}, {"topic": "stack", "value": "current", "reason": "a test's"}, {"topic": "nodes", "value": "node0, node1", "reason": "all of cluster 'lab'"}, {"topic": "ranks", "value": "4", "reason": "2 on each node, as requested"}, {"topic": "launcher", "value": "mpirun", "reason": "mpiexec.hydra of Intel MPI; stack 'current'"}, {"topic": "image", "value": "orch:current", "reason": "by docker, one container on each node, as the node's user; ranks on its python3"}, {"topic": "backend", "value": "gloo", "reason": "part of PyTorch, over TCP"}, {"topic": "precision", "value": "bf16", "reason": "avx512_bf16 on all 2 nodes"}, {"topic": "preload", "value": "libiomp5.so, libtcmalloc_minimal.so.4", "reason": "if the image has them"}, {"topic": "network", "value": "eth1 on node0, node1", "reason": "route to the other nodes"}, {"topic": "kernels", "value": "torch", "reason": "stack 'current' has no package orch_kernels"}], "layout": [{"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "worker_cpus": []}, {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "worker_cpus": []}, {"rank": 2, "node": "node1", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "worker_cpus": []}, {"rank": 3, "node": "node1", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "worker_cpus": []}]}
# write /opt/orch/runs/r/env.json on node0, node1: 82 bytes
#   {
#    "MASTER_ADDR": "10.0.0.0",
#    "MASTER_PORT": "24609",
#    "PYTHONUNBUFFERED": "1"
#   }
# write /opt/orch/runs/r/container.json on node0, node1: 952 bytes
#   {
#    "schema": 1,
#    "image": "orch:current",
#    "start": "rank",
#    "python": "python3",
#    "preload": [
#     "libiomp5.so",
#     "libtcmalloc_minimal.so.4"
#    ],
#    "processes": {
#     "node0": 2,
#     "node1": 2
#    },
#    "options": [
#     "--network",
#     "host",
#     "--pid",
#     "host",
#     "--shm-size",
#     "1g",
#     "--ulimit",
#     "memlock=-1:-1",
#     "--workdir",
#     "/opt/orch/runs/r",
#     "--env",
#     "HOME=/tmp",
#     "--env",
#     "USER=orch",
#     "--mount",
#     "type=bind,\"source=/opt/orch/data\",\"target=/opt/orch/data\"",
#     "--mount",
#     "type=bind,\"source=/opt/orch/hub\",\"target=/opt/orch/hub\"",
#     "--mount",
#     "type=bind,\"source=/opt/orch/models\",\"target=/opt/orch/models\"",
#     "--mount",
#     "type=bind,\"source=/opt/orch/runs\",\"target=/opt/orch/runs\"",
#     "--mount",
#     "type=bind,\"source=/opt/orch/train\",\"target=/opt/orch/train\"",
#     "--mount",
#     "type=bind,\"source=/data\",\"target=/data\",readonly",
#     "--cap-add=SYS_NICE"
#    ],
#    "env_file": "/etc/own env",
#    "engine": "docker"
#   }
# start on node0
env I_MPI_PIN=0 I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC=/opt/orch/train/ssh I_MPI_HYDRA_IFACE=eth1 /venv/bin/python /opt/orch/train/node.py supervise /opt/orch/runs/r --claims=/opt/orch/claims --stall-timeout=900 -- /venv/bin/mpiexec.hydra -machinefile /opt/orch/runs/r/hostfile -n 4 /venv/bin/python /opt/orch/train/node.py rank --run /opt/orch/runs/r -- /opt/orch/train/qa/qa.py --epochs=2 --bf16 --output_dir=/opt/orch/runs/r/output
