"""The built-in recipes: networks, data sets and image pipelines. Each module is imported only when its recipe is used.

`ddpjob_recipes.dist-info/entry_points.txt` has their names.
"""
