# run: 20260101-120000-qa-0000
# stack: current (a test's)
# nodes: node0 (all of cluster 'lab')
# ranks: 2 (2 on each node, as asked)
# launcher: mpiexec.hydra (Intel MPI)
# backend: gloo (part of PyTorch, over TCP)
# precision: bf16 (the recipe's default; avx512_bf16 on node0)
# preload: /venv/lib/libiomp5.so (not installed everywhere: libtcmalloc_minimal.so.4)
# rank 0: node0, cores 0-1, 2 threads
# rank 1: node0, cores 2-3, 2 threads
mkdir -p /runs/qa-0000 && cat > /runs/qa-0000/hostfile <<'ORCH_END_OF_FILE'
127.0.0.1:2
ORCH_END_OF_FILE
mkdir -p /runs/qa-0000 && cat > /runs/qa-0000/env.json <<'ORCH_END_OF_FILE'
{
 "MASTER_ADDR": "127.0.0.1",
 "MASTER_PORT": "31136",
 "PYTHONUNBUFFERED": "1",
 "TOKENIZERS_PARALLELISM": "false",
 "LD_PRELOAD": "/venv/lib/libiomp5.so",
 "KMP_AFFINITY": "granularity=fine,compact,1,0",
 "KMP_BLOCKTIME": "1"
}
ORCH_END_OF_FILE
mkdir -p /runs/qa-0000 && cat > /runs/qa-0000/layout.json <<'ORCH_END_OF_FILE'
{
 "schema": 1,
 "world_size": 2,
 "backend": "gloo",
 "backend_module": "",
 "timeout_seconds": 1800.0,
 "nodes": [
  {"name": "node0", "host": "host", "address": null, "interface": null, "env": {}}
 ],
 "ranks": [
  {"rank": 0, "node": "node0", "local_rank": 0, "local_world_size": 2, "cpus": [0, 1], "threads": 2, "env": {}},
  {"rank": 1, "node": "node0", "local_rank": 1, "local_world_size": 2, "cpus": [2, 3], "threads": 2, "env": {}}
 ]
}
ORCH_END_OF_FILE
env I_MPI_PIN=0 /venv/bin/python /orch/train/supervise.py /runs/qa-0000 -- /venv/bin/mpiexec.hydra -machinefile /runs/qa-0000/hostfile -n 2 /venv/bin/python /orch/train/rank.py --run /runs/qa-0000 -- /orch/train/qa/qa.py --epochs=2 --bf16 --output_dir=/runs/qa-0000/output
