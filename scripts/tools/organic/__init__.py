"""A data set of organic molecules, labelled by a teacher: what `pretrained:organic` is made of."""
