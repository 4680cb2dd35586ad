"""NVIDIA MIG slices on demand, shared by Kubernetes pods and Slurm jobs."""
