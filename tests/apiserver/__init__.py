"""Test orch against kube-apiserver and etcd, which `make test-k8s` builds from Debian's sources."""
