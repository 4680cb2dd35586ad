"""Slurm in the lab: slurmctld and slurmrestd beside the Kubernetes control plane, a slurmd beside every kubelet.

`config.py` writes what the daemons read, `daemons.py` says what runs, `ground.sh` what a machine must have for them,
`clients.py` runs Slurm's own commands and reads the clues that say a daemon is ready.
"""
