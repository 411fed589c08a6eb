"""A real kube-apiserver on a real etcd, built from Debian's sources: `make test-k8s`."""
