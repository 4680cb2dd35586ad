"""`make demo`: pods and native Slurm jobs share emulated GPUs on real daemons, shown as it happens, checked at the end.

`cast` says who plays and what they ask for, `play` is the story, `stage` and `desk` the modules that touch the lab,
`seen` the values that are read there, `changes` and `checks` what follows from them (`evidence`: what those are given),
`screen` and `picture` how it is shown.
"""
