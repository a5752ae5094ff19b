"""The FG set: how the bundled data are made, and what simple baselines reach on them."""
