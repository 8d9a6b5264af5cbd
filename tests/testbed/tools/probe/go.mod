module testbed.invalid/probe

go 1.26.0
