"""Proofs that run by hand, because the test bed cannot build what they need; `README.md` lists the last run of each."""
