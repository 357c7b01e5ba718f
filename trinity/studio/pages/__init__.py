"""Pages of Studio; what they show is made in plain modules beside this folder."""
