"""The built-in recipes: networks, data sets and image pipelines. Each module is imported only when its recipe is used."""

#: `module:object` of each built-in recipe, by its short name. They are listed here and not as entry points, because images
#: and checkouts run this code without installing it.
NAMES = {
    "digits": "ddpjob_recipes.digits:digits",
    "resnet18-cifar10": "ddpjob_recipes.resnet_cifar10:resnet18_cifar10",
    "resnet50-cifar10": "ddpjob_recipes.resnet_cifar10:resnet50_cifar10",
    "speedrun-cifar10": "ddpjob_recipes.speedrun:speedrun_cifar10",
    "resnet50-224": "ddpjob_recipes.resnet50_224:resnet50_224",
    "resnet50-224-synthetic": "ddpjob_recipes.resnet50_224:resnet50_224_synthetic",
}
