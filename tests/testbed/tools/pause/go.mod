module testbed.invalid/pause

go 1.26.0
