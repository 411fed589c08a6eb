"""Play Kubernetes' operators and kubelet: run jobs of the test API server as processes of this machine."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.support.kubernetes_api import Api

Json = dict[str, Any]


class Operator:
    """An operator that runs the pods of a TrainJob (torch) or a Job."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.threads: list[threading.Thread] = []

    def run(self, plural: str, port: int) -> str:
        """Wait for a job of a kind, start its pods, and return its name."""
        (name,) = self.api.wait_for(lambda: self.api.names(plural), 60.0)
        job = self.api.get(plural, name)
        self.api.put(plural, {**job, "status": make_conditions("Created")})
        template, count, per_pod = pod_template(self.api, job)
        self.write_config_map(template)
        static_variables = {
            "PET_NNODES": str(count),
            "PET_NPROC_PER_NODE": str(per_pod),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(port),
        }
        for index in range(count):
            if plural == "jobs":  # Kubernetes numbers the pods, and a service gives them names
                variables = {"PET_RDZV_ENDPOINT": f"127.0.0.1:{port}", "JOB_COMPLETION_INDEX": str(index)}
                self.start(job, template, f"{name}-{index}-abcde", variables)
            else:  # the trainer numbers its pods
                variables = {**static_variables, "PET_NODE_RANK": str(index)}
                self.start(job, template, f"{name}-node-0-{index}-abcde", variables)
        self.api.put(plural, {**job, "status": make_conditions("Created", "Running")})
        threading.Thread(target=self.complete, args=(plural, name), daemon=True).start()
        return name

    def write_config_map(self, template: Json) -> None:
        """Write the items of the pods' ConfigMaps to the folder where they are mounted."""
        spec = template["spec"]
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "orch-files")
        mounts = spec["containers"][0]["volumeMounts"]
        folder = Path(next(mount["mountPath"] for mount in mounts if mount["name"] == volume["name"]))
        for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
            config_map = self.api.get("configmaps", source["configMap"]["name"])
            contents = {key: text.encode() for key, text in config_map.get("data", {}).items()}
            contents |= {key: base64.b64decode(text) for key, text in config_map.get("binaryData", {}).items()}
            for item in source["configMap"]["items"]:
                path = folder / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(contents[item["key"]])

    def start(self, job: Json, template: Json, name: str, variables: dict[str, str]) -> None:
        """Start the process of a pod with these variables of the operator."""
        container = template["spec"]["containers"][0]
        metadata = {**template["metadata"], "name": name, "ownerReferences": [owner_reference(job)]}
        pod = {"metadata": metadata, "spec": template["spec"]}
        self.api.put("pods", {**pod, "status": {"phase": "Pending"}})
        pod_variables = {variable["name"]: expand(variable["value"]) for variable in container["env"]}
        image_variables = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        process = subprocess.Popen(
            [expand(argument) for argument in [*container["command"], *container.get("args", [])]],
            env={**image_variables, **pod_variables, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes[name] = process
        running = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        self.api.add_log_lines(name)
        self.api.put("pods", {**pod, "status": running})
        fails_with_pod = job["kind"] == "Job" and not job["spec"]["backoffLimit"]
        thread = threading.Thread(target=self.follow, args=(pod, process, fails_with_pod), daemon=True)
        thread.start()
        self.threads.append(thread)

    def follow(self, pod: Json, process: subprocess.Popen[str], fails_with_pod: bool) -> None:
        """Copy the output of a pod to its log, and set the pod's status when the process ends.

        Args:
            pod: the pod.
            process: its process.
            fails_with_pod: whether the job fails with its first pod, which ends all its pods.
        """
        name = pod["metadata"]["name"]
        with process.stdout:
            for line in process.stdout:
                self.api.add_log_lines(name, line.rstrip("\n"))
        code = process.wait()
        self.api.add_log_lines(name, end=True)
        if code and fails_with_pod:
            for pod_process in self.processes.values():
                pod_process.terminate()
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": state}]}
        if self.api.get("pods", name):
            self.api.put("pods", {**pod, "status": status})

    def complete(self, plural: str, name: str) -> None:
        """Wait until all pods have ended, and set the status of the job."""
        for thread in self.threads:
            thread.join()
        codes = [process.returncode for process in self.processes.values()]
        job = self.api.get(plural, name)
        if job and plural == "jobs":  # a Job has no condition while it runs
            condition = "Failed" if any(codes) else "Complete"
            self.api.put(plural, {**job, "status": make_conditions(condition)})
        elif job:
            condition = "Failed" if any(codes) else "Succeeded"
            self.api.put(plural, {**job, "status": make_conditions("Created", "Running", condition)})


def make_conditions(*kinds: str) -> Json:
    """Return the status of a job with these conditions, all of which are true."""
    return {"conditions": [{"type": kind, "status": "True", "message": f"job {kind}"} for kind in kinds]}


def owner_reference(job: Json) -> Json:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "controller": True, "name": name, "uid": uid}


def pod_template(api: Api, job: Json) -> tuple[Json, int, int]:
    """Return the pod template of a job, its number of pods, and the ranks per pod."""
    if job["kind"] == "Job":
        spec = job["spec"]
        assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
        service = api.get("services", spec["template"]["spec"]["subdomain"])
        assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        return spec["template"], spec["completions"], 0
    runtime = api.get("trainingruntimes", job["spec"]["runtimeRef"]["name"])
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    trainer = job["spec"]["trainer"]
    return (node["template"]["spec"]["template"], trainer["numNodes"], trainer["numProcPerNode"])


def expand(text: str) -> str:
    """Expand `$$` to `$` as the kubelet does; orch escapes all dollar signs like this."""
    return re.sub(r"\$\$", "$", text)
