"""Train in the pods of a Kubernetes cluster."""
