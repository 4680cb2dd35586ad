"""Things to run and to copy: `make demo`, and manifests that show each way to ask for a slice."""
