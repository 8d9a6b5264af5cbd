"""From a state to a file that is whole, and back: copy, writer, folder with its manifests, and the claim that fences it."""
