"""The bridge of a cluster: pods in Slurm namespaces get their slices through external jobs that pay for them."""
