"""The DDPJob type: spec, status, defaults, names and the CRD made from them. Imports no client and no event loop."""
