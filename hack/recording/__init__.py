"""The animated picture of the README: commands on a real cluster, recorded on a pseudo-terminal and drawn as an SVG."""
