"""Measured figures of dynamig: `python -m bench`.

Rules of the folder. A figure is reported, never asserted: machines differ. It stands beside something named that
was measured in the same run, in turn with it (A B A B ...), so that a noisy machine is noisy for both; the ratio is
what may be compared between machines. Quantiles are given only where enough values lie beyond them.
"""
