"""The recipes: networks, data sets and image pipelines. Each module is imported only when its recipe is asked for."""
