"""The programs that run in the pods of Kubernetes."""
