"""What driver, bridge and Slurm's prolog agree on: names, values, lifecycles, reasons, invariants, ports.

Pure: no I/O, no clock, no thread. Ports are the small interfaces through which the services reach the outside;
the adapters in `nvml`, `kube` and `cdi` implement them, `testing` has fakes that pass the same checks.
"""
