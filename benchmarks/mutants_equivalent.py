"""Mutants that no test can tell from sound code, each with the reason."""

from collections.abc import Mapping

EQUIVALENT: Mapping[str, str] = {
    "advantage.groups.draw_copies: donors_D = np.flatnonzero(~is_left_out_G & "
    "(samples.group_sizes > 0)) [0 to 1]": "groups of one are always left out themselves",
    "advantage.maxrl.maxrl: scales_N = np.where(is_used_G, means_G, 1.0)[samples.groups] "
    "[1.0 to 2.0]": "where the scale is not the mean the advantage is 0 in any case",
    "advantage.samples.group_means: means_G: FloatVector = first_G + sums_G / "
    "np.maximum(self.group_sizes, 1) [1 to 2]": "differences within a group of one add up to 0",
}
"""By `Mutant.name`."""
