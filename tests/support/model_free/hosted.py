"""A workflow that was written for Trinity-RFT."""

from trinity.rft.common.experience import Experience
from trinity.rft.common.workflows.workflow import SimpleWorkflow

OFFSET = 100.0
"""Added to every reward, so that no other can be taken for it."""


class Ranks(SimpleWorkflow):
    """Ranks the answers of a group, and builds the first one again with a token of its own."""

    def run(self) -> list[Experience]:
        """Returns an experience for each run."""
        answers = self.model.chat(self.format_messages(), **self.rollout_args)
        order = sorted(answers, key=lambda answer: answer.response_text)
        for i, answer in enumerate(answers):
            answer.reward = OFFSET + order.index(answer)
            answer.eid.run = i + self.run_id_base
        first = answers[0]
        tokens = [*first.tokens.tolist(), first.tokens[-1].item()]
        answers[0] = Experience(
            tokens=tokens,
            prompt_length=first.prompt_length,
            logprobs=[*first.logprobs.tolist(), -0.5],
            reward=first.reward,
            eid=first.eid,
        )
        return answers
