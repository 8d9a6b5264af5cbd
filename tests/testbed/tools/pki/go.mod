module testbed.invalid/pki

go 1.26.0
