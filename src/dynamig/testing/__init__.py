"""What tests and the lab stand on: the NVML emulator, fakes of the ports, GPU models as data."""
