"""Names of selectors: those of the buffer, and classes of users, which are refused when named."""

from trinity.plugins import Registry

_RFT = "trinity.rft.buffer.selector"

SELECTORS: Registry[type] = Registry(
    "selector",
    {
        "sequential": f"{_RFT}.SequentialSelector",
        "shuffle": f"{_RFT}.ShuffleSelector",
        "random": f"{_RFT}.RandomSelector",
        "offline_easy2hard": f"{_RFT}.OfflineEasy2HardSelector",
        "difficulty_based": f"{_RFT}.DifficultyBasedSelector",
    },
    adapter=f"{_RFT}.keep_selector",
)


def refusal(name: str) -> str:
    """Returns the reason why a user's selector is not used; empty for a built-in one."""
    if not SELECTORS.is_own(name):
        return ""
    return (
        f"`data_selector.selector_type: {name}` is a selector of your own, which is not called "
        "here: order the rows by a column with `offline_easy2hard`, or in a task pipeline"
    )
