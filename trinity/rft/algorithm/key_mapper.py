"""Names of tensors in Trinity-RFT's losses and in verl's batches."""

from collections.abc import Mapping


class KeyMapper:
    """Translates names of tensors.

    ALL_MAPPERS["verl"].from_trinity("old_logprob")   # "old_log_probs"
    """

    def __init__(self, to_trinity_map: Mapping[str, str]) -> None:
        self.to_trinity_map = dict(to_trinity_map)
        self.from_trinity_map = {theirs: ours for ours, theirs in to_trinity_map.items()}

    def to_trinity(self, key: str) -> str:
        """Returns the name in a loss; an unknown name stays."""
        return self.to_trinity_map.get(key, key)

    def from_trinity(self, key: str) -> str:
        """Returns the name in a batch; an unknown name stays."""
        return self.from_trinity_map.get(key, key)


ALL_MAPPERS: Mapping[str, KeyMapper] = {
    "verl": KeyMapper(
        {
            "log_prob": "logprob",
            "old_log_probs": "old_logprob",
            "ref_log_prob": "ref_logprob",
            "response_mask": "action_mask",
            "advantages": "advantages",
        }
    ),
    "tinker": KeyMapper({}),
}
