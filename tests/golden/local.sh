# run: 20260101-120000-qa-0000
# stack: current (a test's)
# nodes: node0 (all of cluster 'lab')
# ranks: 2 (2 on each node, as requested)
# launcher: mpirun (mpiexec.hydra of Intel MPI; stack 'current')
# backend: gloo (part of PyTorch, over TCP)
# precision: bf16 (avx512_bf16 on node0)
# preload: /venv/lib/libiomp5.so (not installed everywhere: libtcmalloc_minimal.so.4)
# kernels: torch (stack 'current' has no package orch_kernels)
# rank 0: node0, cores 0-1, 2 threads
# rank 1: node0, cores 2-3, 2 threads
# write /runs/qa-0000/hostfile on node0: 12 bytes
#   127.0.0.1:2
# write /runs/qa-0000/layout.json on node0: 682 bytes
#   {
#    "schema": 1,
#    "world_size": 2,
#    "backend": "gloo",
#    "backend_module": "",
#    "timeout_seconds": 1800.0,
#    "nodes": [
#     {"name": "node0", "host": "host", "torch": "2.13.0+cpu", "address": null, "interface": null, "env": {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "CCL_KVS_IFACE": "lo", "FI_TCP_IFACE": "lo", "NCCL_SOCKET_IFNAME": "=lo"}, "repair": "`orch provision`", "recorded": false}
#    ],
#    "ranks": [
#     {"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "worker_cpus": [], "env": {}},
#     {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "worker_cpus": [], "env": {}}
#    ]
#   }
# write /runs/qa-0000/run.json on node0: 1.4 kB
#   {"schema": 1, "run_id": "20260101-120000-qa-0000", "node0": {"node": "node0", "via": []}, "nodes": [{"node": "node0", "via": []}], "run_dir": "/runs/qa-0000", "train": "/orch/train", "python": "/venv/bin/python", "recipe": "qa", "resumes": true, "output_dir": "/runs/qa-0000/output", "backend": "gloo", "precision": "bf16", "started_by": "me@here", "created": 1.0, "decisions": [{"topic": "run", "value": "20260101-120000-qa-0000", "reason": ""}, {"topic": "stack", "value": "current", "reason": "a test's"}, {"topic": "nodes", "value": "node0", "reason": "all of cluster 'lab'"}, {"topic": "ranks", "value": "2", "reason": "2 on each node, as requested"}, {"topic": "launcher", "value": "mpirun", "reason": "mpiexec.hydra of Intel MPI; stack 'current'"}, {"topic": "backend", "value": "gloo", "reason": "part of PyTorch, over TCP"}, {"topic": "precision", "value": "bf16", "reason": "avx512_bf16 on node0"}, {"topic": "preload", "value": "/venv/lib/libiomp5.so", "reason": "not installed everywhere: libtcmalloc_minimal.so.4"}, {"topic": "kernels", "value": "torch", "reason": "stack 'current' has no package orch_kernels"}], "layout": [{"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "worker_cpus": []}, {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "worker_cpus": []}]}
# write /runs/qa-0000/env.json on node0: 146 bytes
#   {
#    "MASTER_ADDR": "127.0.0.1",
#    "MASTER_PORT": "31136",
#    "PYTHONUNBUFFERED": "1",
#    "LD_PRELOAD": "/venv/lib/libiomp5.so",
#    "KMP_BLOCKTIME": "1"
#   }
# start on node0
env I_MPI_PIN=0 /venv/bin/python /orch/train/node.py supervise /runs/qa-0000 --claims=/state/claims --stall-timeout=900 -- /venv/bin/mpiexec.hydra -machinefile /runs/qa-0000/hostfile -n 2 /venv/bin/python /orch/train/node.py rank --run /runs/qa-0000 -- /orch/train/qa/qa.py --epochs=2 --bf16 --output_dir=/runs/qa-0000/output
