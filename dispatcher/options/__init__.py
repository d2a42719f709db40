"""The options of `lithify dispatch`, checked together, and the settings of the components they become."""
