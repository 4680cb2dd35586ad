"""`make demo`: pods get slices of emulated GPUs on real Kubernetes, shown as it happens and checked at the end.

`cast` says who plays and what they ask for, `play` is the story, `stage` the only module that touches the lab, `seen`
the values it reads, `changes` and `checks` what follows from them, `screen` how it is shown.
"""
