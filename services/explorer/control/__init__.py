"""Control of the explorer: its process, its experiments and their stages."""
