"""Matches the messages of a transcript to the model's answers by their texts."""

from collections.abc import Sequence


def common_places(told: Sequence[str], answers: Sequence[str]) -> list[int]:
    """Returns the indices in `answers` of a longest common subsequence with `told`.

    A quotation may equal an answer, so that matching the first equal one could leave no room for
    earlier answers. Among equal answers the later ones are taken: after a retry, the last answer
    is the one that was kept.
    """
    row, column = len(told), len(answers)
    places: list[int] = []
    while row and column and told[row - 1] == answers[column - 1]:  # usually all match
        row, column = row - 1, column - 1
        places.append(column)
    lengths = _lengths(told[:row], answers[:column])
    while row and column:
        if told[row - 1] == answers[column - 1]:
            row, column = row - 1, column - 1
            places.append(column)
        elif lengths[row - 1][column] >= lengths[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return places[::-1]


def _lengths(told: Sequence[str], answers: Sequence[str]) -> list[list[int]]:
    """Returns the lengths of the longest common subsequences of all prefixes."""
    lengths = [[0] * (len(answers) + 1)]
    for text in told:
        above, row = lengths[-1], [0]
        for index, answer in enumerate(answers):
            is_found = text == answer
            row.append(above[index] + 1 if is_found else max(above[index + 1], row[index]))
        lengths.append(row)
    return lengths
