"""Which answers of the model a transcript consists of, by their texts alone."""

from collections.abc import Sequence


def common_places(told: Sequence[str], answers: Sequence[str]) -> list[int]:
    """Places of as many answers as can be found in what was told, both in their order.

    A quotation may be like an answer: taking the first one that is alike could leave no place for
    those before it. Of equal answers the later ones are taken, as what was asked again is what
    stayed.
    """
    row, column = len(told), len(answers)
    places: list[int] = []
    while row and column and told[row - 1] == answers[column - 1]:  # most often that is all
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
    """How many can be found in the first i told and the first j answers."""
    lengths = [[0] * (len(answers) + 1)]
    for text in told:
        above, row = lengths[-1], [0]
        for place, answer in enumerate(answers):
            is_found = text == answer
            row.append(above[place] + 1 if is_found else max(above[place + 1], row[place]))
        lengths.append(row)
    return lengths
