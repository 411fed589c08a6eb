"""What operator and kubelet do, for tests: jobs of the test API server become processes here."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.kube_api import Api

Json = dict[str, Any]


class Operator:
    """Runs the pods of a PyTorchJob, a TrainJob (torch) or a Job as processes of this machine."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.threads: list[threading.Thread] = []
        self.starts = 0  # how often a job's pods were made

    def run(self, plural: str, port: int) -> str:
        """Take up the next job of a kind; -> its name."""
        (name,) = self.api.wait_for(lambda: self.api.names(plural), 60.0)
        job = self.api.get(plural, name)
        assert job is not None
        self.api.put(plural, {**job, "status": make_conditions("Created")})
        self.start_pods(plural, job, port)
        return name

    def start_pods(self, plural: str, job: Json, port: int) -> None:
        name = job["metadata"]["name"]
        self.starts += 1
        self.processes, self.threads = {}, []
        template, count, per_pod = pod_template(self.api, job)
        self.lay_files(template)
        pet = {
            "PET_NNODES": f"{count}:{count}",
            "PET_NPROC_PER_NODE": str(per_pod),
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
            "PET_RDZV_ID": name,
            "PET_MAX_RESTARTS": "0",
        }
        static = {
            "PET_NNODES": str(count),
            "PET_NPROC_PER_NODE": str(per_pod),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(port),
        }
        for index in range(count):
            if plural == "jobs":  # Kubernetes numbers the pods, and a service names them
                meet = {"PET_RDZV_ENDPOINT": f"127.0.0.1:{port}", "JOB_COMPLETION_INDEX": str(index)}
                self.start(job, template, f"{name}-{index}-abcde", meet)
            elif plural == "trainjobs":  # the trainer numbers its pods
                own = {**static, "PET_NODE_RANK": str(index)}
                self.start(job, template, f"{name}-node-0-{index}-abcde", own)
            else:
                self.start(job, template, f"{name}-worker-{index}", pet)
        self.api.put(plural, {**job, "status": make_conditions("Created", "Running")})
        threading.Thread(target=self.end, args=(plural, name, port), daemon=True).start()

    def lay_files(self, template: Json) -> None:
        """The ConfigMap's items, where it is mounted."""
        spec = template["spec"]
        volume = next(one for one in spec["volumes"] if "configMap" in one)
        mounts = spec["containers"][0]["volumeMounts"]
        folder = Path(next(one["mountPath"] for one in mounts if one["name"] == volume["name"]))
        made = self.api.get("configmaps", volume["configMap"]["name"])
        assert made is not None
        for item in volume["configMap"]["items"]:
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made["data"][item["key"]])

    def start(self, job: Json, template: Json, name: str, pet: dict[str, str]) -> None:
        container = template["spec"]["containers"][0]
        metadata = {**template["metadata"], "name": name, "ownerReferences": [owner_reference(job)]}
        pod = {"metadata": metadata, "spec": template["spec"]}
        self.api.put("pods", {**pod, "status": {"phase": "Pending"}})
        own = {one["name"]: expand(one["value"]) for one in container["env"]}
        kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        process = subprocess.Popen(
            [expand(word) for word in [*container["command"], *container.get("args", [])]],
            env={**kept, **own, **pet},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes[name] = process
        running = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        self.api.add_log_lines(name)
        self.api.put("pods", {**pod, "status": running})
        last_failure = job["kind"] == "Job" and not job["spec"]["backoffLimit"]
        thread = threading.Thread(target=self.read, args=(pod, process, last_failure), daemon=True)
        thread.start()
        self.threads.append(thread)

    def read(self, pod: Json, process: subprocess.Popen[str], last_failure: bool) -> None:
        """`last_failure`: the Job ends with the first pod that fails, and its pods with it."""
        name = pod["metadata"]["name"]
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.api.add_log_lines(name, line.rstrip("\n"))
        code = process.wait()
        self.api.add_log_lines(name, end=True)
        for other in self.processes.values() if code and last_failure else ():
            other.terminate()
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": {"terminated": ended}}]}
        if self.api.get("pods", name):
            self.api.put("pods", {**pod, "status": status})

    def end(self, plural: str, name: str, port: int) -> None:
        for thread in self.threads:
            thread.join()
        codes = [process.returncode for process in self.processes.values()]
        job = self.api.get(plural, name)
        if job and plural == "jobs":  # which has no condition while it runs
            last = "Failed" if any(codes) else "Complete"
            self.api.put(plural, {**job, "status": make_conditions(last)})
        elif job:
            last = "Failed" if any(codes) else "Succeeded"
            if last == "Failed" and plural == "pytorchjobs":
                clean_up_failed_job(self.api, job)
            self.api.put(plural, {**job, "status": make_conditions("Created", "Running", last)})
            self.live_on(plural, job, port)

    def live_on(self, plural: str, job: Json, port: int) -> None:
        """The time to live of a TrainJob's JobSet: Kubernetes deletes it, with its pods, and the
        trainer (2.1.0) makes another for the job that is still there."""
        if plural != "trainjobs":
            return
        runtime = self.api.get("trainingruntimes", job["spec"]["runtimeRef"]["name"])
        ttl = (runtime or {})["spec"]["template"]["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        time.sleep(ttl)
        for pod in self.processes:
            self.api.remove("pods", pod)
        self.start_pods(plural, job, port)

    def kill_deleted(self) -> None:
        """End the processes of pods that were deleted, as a kubelet does."""
        for name, process in self.processes.items():
            if self.api.get("pods", name) is None and process.poll() is None:
                process.terminate()


def clean_up_failed_job(api: Api, job: Json) -> None:
    """What the training operator (1.9.3) does to the pods of a PyTorchJob that fails: with a
    backoffLimit that is used up all go at once, else those that its cleanPodPolicy says."""
    policy = job["spec"]["runPolicy"]
    for name in api.names("pods"):
        pod = api.get("pods", name)
        owners = (pod or {})["metadata"].get("ownerReferences", ())
        if pod is None or job["metadata"]["uid"] not in [one["uid"] for one in owners]:
            continue
        runs = pod["status"]["phase"] in ("Running", "Pending")
        kept = {"None": True, "Running": not runs, "All": False}[policy["cleanPodPolicy"]]
        if policy.get("backoffLimit") is not None or not kept:
            api.remove("pods", name)


def make_conditions(*kinds: str) -> Json:
    """All but a last Running stay true, as Kubeflow has them."""
    return {"conditions": [{"type": kind, "status": "True", "message": f"job {kind}"} for kind in kinds]}


def owner_reference(job: Json) -> Json:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "controller": True,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }


def pod_template(api: Api, job: Json) -> tuple[Json, int, int]:
    """(template, pods, ranks in each)."""
    if job["kind"] == "Job":
        spec = job["spec"]
        assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
        service = api.get("services", spec["template"]["spec"]["subdomain"])
        assert service is not None
        assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        return spec["template"], spec["completions"], 0
    if job["kind"] == "PyTorchJob":
        worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
        return worker["template"], worker["replicas"], int(job["spec"]["nprocPerNode"])
    runtime = api.get("trainingruntimes", job["spec"]["runtimeRef"]["name"])
    assert runtime is not None
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    trainer = job["spec"]["trainer"]
    return (node["template"]["spec"]["template"], trainer["numNodes"], trainer["numProcPerNode"])


def expand(text: str) -> str:
    """Of the kubelet's expansion, what our own escaping needs: $$ is $."""
    return re.sub(r"\$\$", "$", text)
